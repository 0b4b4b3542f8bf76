// A browser starts no worker for a page that was opened from a folder. Then the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          // As between real workers: a message arrives later, as a copy.
          inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = resolve;
          inside.document.body.append(script);
        };
      });
      document.body.append(this.frame);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => setTimeout(() => this.frame.contentWindow?.onmessage({ data: copy })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
