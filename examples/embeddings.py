"""`ReadableCodes` in a scikit-learn pipeline, and what its dimensions mean.

    python examples/embeddings.py

The rows are scikit-learn's handwritten digits, 64 numbers each. Labels train the classifier only, never the codes.
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
    parser.add_argument("--dim", type=int, default=64)
    options = parser.parse_args()

    X, y = (part[: options.rows] for part in load_digits(return_X_y=True))
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    codes = ReadableCodes(dim=options.dim, keep=5, random_state=0)
    pipeline = make_pipeline(codes, LogisticRegression(max_iter=1000, C=10)).fit(X_train, y_train)
    print(f"accuracy from five of {options.dim} dimensions a row: {pipeline.score(X_test, y_test):.3f}")

    z = codes.transform(X_test)
    clear = 0
    for k in range(options.dim):
        fires = y_test[z[:, k] > 0]
        if len(fires) >= 5:
            digit = np.bincount(fires).argmax()
            share = (fires == digit).mean()
            clear += share >= 0.8
            if k < 5:
                print(f"dimension {k}: fires on {len(fires)} rows, {share:.0%} of them a {digit}")
    print(f"{clear} of {options.dim} dimensions are about one digit (80 % or more of the rows they fire on)")


if __name__ == "__main__":
    main()
