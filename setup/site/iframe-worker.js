// Browsers start no worker for pages that are read from a disk (file://): the search then runs in a hidden frame.
// Zensical adds a script of unpkg.com unless the name of a polyfill has "iframe-worker".
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.document.open();
      this.inside.document.write("<body></body>");
      this.inside.document.close();
      this.inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = this.inside.document.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => (script.onload = resolve));
      this.inside.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() => this.inside.onmessage({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
