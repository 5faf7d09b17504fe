// Search in pages opened from disk: browsers start no worker from a file, so the search
// script runs in a hidden iframe with the same interface. Material looks for this class by name.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.window = frame.contentWindow;
    this.window.postMessage = data => {
      const event = new MessageEvent("message", {data});
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    };
    this.loaded = new Promise(resolve => (frame.onload = resolve));
    const inner = frame.contentDocument;
    inner.open();
    inner.write(`<html><body><script src="${url}"></scr` + `ipt></body></html>`);
    inner.close();
  }

  postMessage(data) {
    this.loaded.then(() => this.window.dispatchEvent(new MessageEvent("message", {data})));
  }

  terminate() {
    this.window.frameElement.remove();
  }
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
