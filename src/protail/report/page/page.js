"use strict";
(() => {
  const root = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const figures = JSON.parse($("#figures").textContent);
  const explored = JSON.parse($("#explored").textContent);
  const narrow = () => window.innerWidth < 600;

  // Light or dark: as the system says, until the switch says otherwise.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = () => { try { return localStorage.getItem("protail-theme"); } catch { return null; } };
  function setTheme(name) {
    root.dataset.theme = name;
    const button = $("#theme");
    button.textContent = name === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${name === "dark" ? "light" : "dark"} colours`);
  }
  const preferred = () => kept() || (system.matches ? "dark" : "light");
  setTheme(preferred());
  $("#theme").addEventListener("click", () => {
    const name = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("protail-theme", name); } catch { /* for this visit only */ }
    setTheme(name);
    drawAll();
  });
  system.addEventListener("change", () => { setTheme(preferred()); drawAll(); });

  // Charts. A colour that begins with -- is one of the style sheet.
  function coloured(value, style) {
    if (typeof value === "string") {
      return /^--[a-z]+$/.test(value) ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) =>
        // Names and numbers of the data are left as they are, annotations but for their colours.
        ["text", "x", "y", "z", "name"].includes(key) && key !== "marker"
          ? [key, each] : [key, coloured(each, style)]));
    }
    return value;
  }
  function laidOut(layout, style) {
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, fixedrange: true };
    const { xaxis, yaxis, margin, ...rest } = coloured(layout, style);
    const free = layout.hovermode === "closest";
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: narrow() ? 11 : 13, color: ink },
      margin: { l: narrow() ? 44 : 60, r: 14, t: 10, b: 50, ...margin },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      hoverlabel: { bgcolor: style.getPropertyValue("--card").trim(), bordercolor: line, font: { color: ink } },
      dragmode: free && !narrow() ? "zoom" : false,
      ...rest,
      xaxis: { ...axis, ...xaxis, title: { standoff: 10, ...xaxis.title }, fixedrange: !free },
      yaxis: { ...axis, ...yaxis, title: { standoff: 12, ...yaxis.title }, fixedrange: !free },
    };
  }
  const config = { displayModeBar: false, responsive: true, scrollZoom: false };
  let chosen = -1;
  function drawAll() {
    const style = getComputedStyle(root);
    for (const { name, traces, layout } of figures) {
      Plotly.react(name, coloured(traces, style), laidOut(layout, style), config);
    }
    if (chosen >= 0) dim();
  }

  // The map: what is pointed at is shown, a class can be chosen, and zoomed by buttons.
  const map = $("#prototype-map");
  const tip = $("#tip");
  function figureOf({ name, lines, photo }, isWrong) {
    const figure = document.createElement("figure");
    if (isWrong) figure.className = "wrong";
    const picture = document.createElement(photo ? "img" : "div");
    if (photo) { picture.src = photo; picture.alt = [name, ...lines].join(", "); }
    else { picture.className = "no-photo"; picture.textContent = "no photo"; }
    const caption = document.createElement("figcaption");
    caption.textContent = lines[lines.length - 1] || name;
    caption.title = name;
    figure.append(picture, caption);
    return figure;
  }
  function showTip({ name, lines, photo }, x, y) {
    const picture = $("img", tip);
    picture.hidden = !photo;
    if (photo) picture.src = photo;
    $("b", tip).textContent = name;
    $("p", tip).textContent = lines.join("\n");
    tip.hidden = false;
    const width = tip.offsetWidth;
    const left = Math.min(x + 14, root.clientWidth - width - 8);
    tip.style.left = `${window.scrollX + Math.max(8, left)}px`;
    tip.style.top = `${window.scrollY + Math.max(8, y + 14 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 14 : y + 14)}px`;
  }
  const ringed = (i) => {
    const figure = figures.find((each) => each.name === "prototype-map");
    return figure.traces[0].marker.symbol[i] === "circle-open";
  };
  function dim() {
    const faint = (list) => list.map((each) => (chosen < 0 || each === chosen ? 0.9 : 0.07));
    const all = explored.classes.map((_, i) => i);
    Plotly.restyle(map, { "marker.opacity": [chosen < 0 ? 0.6 : faint(explored.of), faint(all)] }, [0, 1]);
  }
  function choose(index) {
    chosen = index;
    dim();
    const strip = $("#map-examples");
    strip.hidden = index < 0;
    strip.replaceChildren();
    if (index < 0) return;
    strip.append(figureOf({ ...explored.prototypes[index], lines: ["training"] }, false));
    explored.of.forEach((each, i) => {
      if (each === index && strip.childElementCount < 40) strip.append(figureOf(explored.examples[i], ringed(i)));
    });
  }
  function prepareMap() {
    const select = $("#map-class");
    explored.classes.forEach((name, i) => select.add(new Option(name, String(i))));
    select.addEventListener("change", () => choose(select.value === "" ? -1 : Number(select.value)));
    const point = (event) => {
      const { curveNumber, pointNumber } = event.points[0];
      const about = (curveNumber === 0 ? explored.examples : explored.prototypes)[pointNumber];
      showTip(about, event.event.clientX, event.event.clientY);
    };
    map.on("plotly_hover", point);
    map.on("plotly_click", point);
    map.on("plotly_unhover", () => { tip.hidden = true; });
    window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
    window.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
    for (const button of $$("[data-zoom]")) {
      button.addEventListener("click", () => {
        if (button.dataset.zoom === "reset") {
          Plotly.relayout(map, { "xaxis.autorange": true, "yaxis.autorange": true });
          return;
        }
        const scaled = ([low, high]) => {
          const middle = (low + high) / 2, half = (high - low) / 2 * Number(button.dataset.zoom);
          return [middle - half, middle + half];
        };
        const { xaxis, yaxis } = map.layout;
        Plotly.relayout(map, { "xaxis.range": scaled(xaxis.range), "yaxis.range": scaled(yaxis.range) });
      });
    }
  }

  // Tables: sorted by a heading, searched by a word.
  function sort(heading) {
    const table = heading.closest("table");
    const column = [...heading.parentNode.children].indexOf(heading);
    const isText = heading.classList.contains("text");
    const up = heading.getAttribute("aria-sort") === (isText ? "none" : "descending") || (isText && heading.getAttribute("aria-sort") === "descending");
    for (const each of $$("thead th", table)) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = isText
      ? (one, other) => value(one).localeCompare(value(other), undefined, { numeric: true })
      : (one, other) => number(value(one)) - number(value(other));
    const number = (text) => (text === "" ? -Infinity : Number(text));
    const rows = [...table.tBodies[0].rows].sort(compare);
    table.tBodies[0].append(...(up ? rows : rows.reverse()));
  }
  for (const button of $$("thead button")) button.addEventListener("click", () => sort(button.parentNode));
  for (const input of $$("[data-filter]")) {
    input.addEventListener("input", () => {
      const word = input.value.trim().toLowerCase();
      for (const row of $(`#${input.dataset.filter}`).tBodies[0].rows) {
        row.hidden = !row.textContent.toLowerCase().includes(word);
      }
    });
  }

  // Commands are copied, or selected where a browser does not allow that.
  for (const button of $$("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = $("code", button.parentNode);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // The contents say where one is.
  const links = new Map($$("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      const link = links.get(target.id);
      link.setAttribute("aria-current", "true");
      const list = link.closest("ul");
      if (list.scrollWidth > list.clientWidth) list.scrollLeft = link.offsetLeft - list.offsetLeft - 20;
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of $$("main > section")) seen.observe(section);

  drawAll();
  if (map && explored) prepareMap();
  root.dataset.ready = "true";
})();
