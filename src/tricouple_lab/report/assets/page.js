// Draws the panels with plotly in the colours of the page, for what the reader chose.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displayModeBar: false, // a plot is one image to a screen reader: no buttons inside
  };

  // Colours in the data are CSS variables, so that the style sheet alone knows the themes.
  const inPageColours = (text) => {
    const style = getComputedStyle(document.documentElement);
    return text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  };

  const unpack = ({ points, scale, steps }) => {
    const bytes = Uint8Array.from(atob(points), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const numbers = Array.from({ length: bytes.length / 2 }, (_, i) => view.getInt16(2 * i, true) / scale);
    const count = numbers.length / steps.length / 2;
    return steps.map((step, frame) => {
      const start = 2 * frame * count;
      return { step, x: numbers.slice(start, start + count), y: numbers.slice(start + count, start + 2 * count) };
    });
  };

  class Study {
    constructor(article) {
      this.article = article;
      this.choice = {};
      this.figures = [...article.querySelectorAll(".figure")].map((element) => new Figure(element, this));
      for (const select of article.querySelectorAll(".choices select")) {
        this.choice[select.dataset.key] = select.value;
        select.addEventListener("change", () => {
          this.choice[select.dataset.key] = select.value;
          this.draw();
        });
      }
    }

    async draw() {
      const turn = (this.turn = {}); // a later choice overtakes an earlier one
      this.article.setAttribute("aria-busy", "true");
      for (const figure of this.figures) {
        for (const panel of figure.panels) {
          if (this.turn !== turn) return;
          await panel.draw();
          await new Promise((resume) => setTimeout(resume)); // let the reader scroll
        }
        figure.sayIfEmpty();
      }
      this.article.setAttribute("aria-busy", "false");
    }
  }

  class Figure {
    constructor(element, study) {
      this.element = element;
      this.study = study;
      this.off = new Set();
      this.panels = [...element.querySelectorAll(".panel")].map((box) => new Panel(box, this));
      for (const button of element.querySelectorAll(".legend button")) {
        button.addEventListener("click", () => this.toggle(button));
      }
      const movie = element.querySelector(".movie");
      if (movie) this.movie = new Movie(movie, this);
    }

    toggle(button) {
      const { name } = button.dataset;
      const show = this.off.delete(name);
      if (!show) this.off.add(name);
      button.setAttribute("aria-pressed", show);
      this.panels.forEach((panel) => panel.draw());
    }

    sayIfEmpty() {
      const empty = this.panels.every((panel) => panel.box.hidden);
      this.element.querySelector(".nothing").hidden = !empty;
    }
  }

  class Panel {
    constructor(box, figure) {
      this.box = box;
      this.figure = figure;
      this.plot = box.querySelector(".plot");
      this.text = box.querySelector("script").textContent;
    }

    async draw() {
      const { choice } = this.figure.study;
      const { data, layout } = JSON.parse(inPageColours(this.text));
      const chosen = data.filter(({ meta }) =>
        Object.entries(meta?.when ?? {}).every(([key, value]) => choice[key] === value));
      this.box.hidden = chosen.length === 0;
      if (this.box.hidden) return;
      const traces = chosen.filter(({ meta }) => !this.figure.off.has(meta?.name));
      this.frames = traces[0]?.meta?.movie ? unpack(traces[0].meta.movie) : null;
      if (this.frames) Object.assign(traces[0], this.frameAt(this.figure.movie.step));
      layout.dragmode = touch ? false : "zoom"; // a finger scrolls the page
      await Plotly.react(this.plot, traces, layout, config);
      this.plot.dataset.drawn = traces.length;
    }

    frameAt(step) {
      const { x, y } = this.frames.findLast((frame) => frame.step <= step) ?? this.frames[0];
      return { x, y };
    }

    show(step) {
      if (this.box.hidden || !this.frames) return;
      const { x, y } = this.frameAt(step);
      Plotly.restyle(this.plot, { x: [x], y: [y] }, [0]);
    }
  }

  class Movie {
    constructor(element, figure) {
      this.figure = figure;
      this.steps = element.dataset.steps.split(" ").map(Number);
      this.slider = element.querySelector("input");
      this.output = element.querySelector("output");
      this.button = element.querySelector("button");
      this.slider.addEventListener("input", () => this.show());
      this.button.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    }

    get step() {
      return this.steps[this.slider.valueAsNumber];
    }

    show() {
      this.output.value = this.step;
      this.figure.panels.forEach((panel) => panel.show(this.step));
    }

    play() {
      if (this.slider.valueAsNumber === this.steps.length - 1) this.slider.value = 0;
      this.show();
      this.button.textContent = "Pause";
      this.timer = setInterval(() => {
        this.slider.value = this.slider.valueAsNumber + 1;
        this.show();
        if (this.slider.valueAsNumber === this.steps.length - 1) this.stop();
      }, 250);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = null;
      this.button.textContent = "Play";
    }
  }

  const studies = [...document.querySelectorAll(".study")].map((article) => new Study(article));
  const drawAll = () => studies.forEach((study) => study.draw());
  dark.addEventListener("change", drawAll);
  drawAll();
})();
