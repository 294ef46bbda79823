// Browsers start no worker from a folder (file://). There, run the script of a worker, such as the site's search, in a
// hidden frame of the page. Zensical's offline plugin loads a script from another host for this unless one with this
// name is there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    onmessage = null
    onerror = null
    #waiting = []
    #frame = document.createElement("iframe")

    constructor(url) {
      super()
      this.#frame.hidden = true
      document.documentElement.appendChild(this.#frame)
      const inner = this.#frame.contentWindow
      inner.postMessage = (data) => this.#emit(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      script.src = new URL(url, location.href)
      script.onerror = () => this.#emit(new Event("error"))
      script.onload = () => {
        const waiting = this.#waiting
        this.#waiting = null
        waiting.forEach((data) => this.postMessage(data))
      }
      inner.document.head.appendChild(script)
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data)
      else this.#frame.contentWindow?.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.#frame.remove()
    }

    #emit(event) {
      // Later, as from a real worker: the caller may set its handlers first.
      setTimeout(() => {
        this[`on${event.type}`]?.(event)
        this.dispatchEvent(event)
      })
    }
  }
}
