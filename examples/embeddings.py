"""`ReadableCodes` in a scikit-learn pipeline, and what its dimensions mean.

    python examples/embeddings.py

The rows are scikit-learn's handwritten digits, 64 numbers each. Only the classifier uses labels.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from bayesncl import ReadableCodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1797)
    parser.add_argument("--components", type=int, default=64)
    options = parser.parse_args()

    X, y = (part[: options.rows] for part in load_digits(return_X_y=True))
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    codes = ReadableCodes(options.components, n_active=5, random_state=0)
    pipeline = make_pipeline(codes, LogisticRegression(max_iter=1000, C=10)).fit(X_train, y_train)
    accuracy = pipeline.score(X_test, y_test)
    print(f"accuracy with 5 of {options.components} dimensions per row: {accuracy:.3f}")

    z = codes.transform(X_test)
    clear = 0
    for k in range(options.components):
        fires = y_test[z[:, k] > 0]
        if len(fires) >= 5:
            digit = np.bincount(fires).argmax()
            share = (fires == digit).mean()
            clear += share >= 0.8
            if k < 5:
                print(f"dimension {k}: fires on {len(fires)} rows, {share:.0%} of them a {digit}")
    print(f"{clear} of {options.components} dimensions are at least 80 % one digit")


if __name__ == "__main__":
    main()
