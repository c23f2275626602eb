"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));

  // Colour names such as "@c0" are CSS variables of the page.
  const resolve = (value, styles) => {
    if (typeof value === "string") {
      return /^@[a-z]+[0-9]*$/.test(value) ? styles.getPropertyValue("--" + value.slice(1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolve(item, styles));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, styles)]));
    }
    return value;
  };

  const config = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["sendDataToCloud", "lasso2d", "select2d"] };
  const sources = new Map(all("script[data-figure]").map((s) => [s.dataset.figure, JSON.parse(s.textContent)]));
  const drawn = new Set();
  const draw = (holder) => {
    const figure = resolve(sources.get(holder.id), getComputedStyle(root));
    const wide = holder.clientWidth > 560;
    if (!wide && !holder.dataset.scene) {
      // Narrow: a smaller left margin, and the legend below the figure, one entry a line.
      const entries = figure.layout.showlegend === false ? 0 : figure.data.filter((t) => t.showlegend !== false).length;
      const below = entries > 1 ? 20 * entries : 0;
      figure.layout.margin = { ...figure.layout.margin, l: 44, r: 6, b: 60 + below };
      figure.layout.legend = { font: { size: 11 }, x: 0, yref: "container", y: 0, yanchor: "bottom" };
      figure.layout.height += below;
      holder.style.height = figure.layout.height + "px";
    }
    drawn.add(holder);
    return Plotly.react(holder, figure.data, figure.layout, { ...config, displayModeBar: wide && holder.dataset.scene ? true : wide ? "hover" : false });
  };
  // Each figure is drawn when it comes near the window: a page with several 3-D views opens at once.
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
    }
  }, { rootMargin: "500px" });
  for (const holder of all(".plot")) {
    holder.style.height = sources.get(holder.id).layout.height + "px";
    watch.observe(holder);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((holder) => draw(holder)));
  addEventListener("beforeprint", () => all(".plot").forEach((holder) => { if (!drawn.has(holder)) draw(holder); }));

  // The table of contents marks the part that is being read.
  const links = new Map(all("nav.toc a").map((a) => [a.hash.slice(1), a]));
  const targets = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const mark = () => {
    const passed = targets.filter((t) => t.getBoundingClientRect().top < 140);
    const current = passed.length ? passed[passed.length - 1].id : targets[0] && targets[0].id;
    links.forEach((link, id) => (id === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  };
  addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
  mark();

  // Any two specs, side by side.
  for (const chooser of all(".diff-chooser")) {
    const [left, right] = all("select", chooser);
    const message = chooser.querySelector(".diff-message");
    const panes = all("details.diff");
    const show = () => {
      let found = false;
      for (const pane of panes) {
        const on = [left.value, right.value].includes(pane.dataset.left) && [left.value, right.value].includes(pane.dataset.right) && left.value !== right.value;
        pane.hidden = !on;
        pane.open = on;
        found = found || on;
      }
      message.hidden = found;
    };
    chooser.hidden = false;
    left.addEventListener("change", show);
    right.addEventListener("change", show);
    show();
  }

  // A platform picked in one view of the geometry is picked in the other.
  for (const bar of all(".pick")) {
    const views = bar.closest(".geometry");
    bar.hidden = false;
    bar.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      const on = button.getAttribute("aria-pressed") !== "true";
      all("button", bar).forEach((b) => b.setAttribute("aria-pressed", String(on && b === button)));
      const platform = on ? button.dataset.platform : null;
      for (const plane of all("svg.plane", views)) {
        plane.classList.toggle("picked", on);
        all(".tri", plane).forEach((t) => t.classList.toggle("on", t.dataset.platform === platform));
      }
      for (const holder of all(".plot[data-scene]", views)) {
        if (!holder.data) continue;
        const traces = holder.data.map((t, i) => [t, i]).filter(([t]) => t.meta);
        for (const [trace, i] of traces) Plotly.restyle(holder, { opacity: platform && trace.meta !== platform ? 0.12 : 1 }, [i]);
      }
    });
  }

  // What a link leads to is unfolded, and so is what it stands in.
  const unfold = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.from).textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(document.getElementById(button.dataset.from));
      }
    });
  }
  root.dataset.ready = "true";
})();
