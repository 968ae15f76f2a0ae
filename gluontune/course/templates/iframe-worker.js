// A page that was opened from a file may start no Worker, and the search runs in one: there its script runs in a
// hidden frame that takes and gives the same messages. (The theme would fetch such a shim from the network.)
if (location.protocol === "file:") {
  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.ready = new Promise((resolve) => {
        const page = this.inside.document;
        this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
        const load = (url) => new Promise((loaded, failed) => {
          const script = page.createElement("script");
          Object.assign(script, {src: url, onload: loaded, onerror: failed});
          page.body.appendChild(script);
        });
        this.inside.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => load(url)), Promise.resolve());
        load(new URL(address, location.href).href).then(resolve);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
