"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const KEY = "spectune-theme";
  const CHOICES = ["auto", "light", "dark"];

  // A browser may refuse storage to a file: the choice then holds until the page is closed.
  const remember = (choice) => { try { localStorage.setItem(KEY, choice); } catch { return; } };
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };

  const colours = () => data.themes[
    root.dataset.theme || (dark.matches ? "dark" : "light")
  ];

  // "@m0" and the like become colours of the theme; every other value stays as it is.
  const painted = (value, palette) => {
    if (typeof value === "string") {
      const name = value.slice(1);
      return value[0] === "@" && Object.hasOwn(palette, name) ? palette[name] : value;
    }
    if (Array.isArray(value)) return value.map((item) => painted(item, palette));
    if (value === null || typeof value !== "object") return value;
    const entries = Object.entries(value);
    return Object.fromEntries(entries.map(([key, item]) => [key, painted(item, palette)]));
  };

  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage"]],
    toImageButtonOptions: { format: "svg" },
  };

  const draw = () => {
    const palette = colours();
    const font = getComputedStyle(document.body).fontFamily;
    for (const place of document.querySelectorAll("[data-figure]")) {
      const figure = painted(data.figures[place.dataset.figure], palette);
      figure.layout.font.family = font;
      figure.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: palette.rule, activecolor: palette.text };
      Plotly.react(place, figure.data, figure.layout, config);
    }
  };

  const choose = (choice) => {
    if (choice === "auto") delete root.dataset.theme;
    else root.dataset.theme = choice;
    button.textContent = `Theme: ${choice}`;
    draw();
  };

  button.addEventListener("click", () => {
    const now = CHOICES.indexOf(root.dataset.theme || "auto");
    const next = CHOICES[(now + 1) % CHOICES.length];
    remember(next);
    choose(next);
  });
  dark.addEventListener("change", draw);

  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };

  for (const copy of document.querySelectorAll(".copy")) {
    copy.addEventListener("click", async () => {
      const source = copy.nextElementSibling;
      try {
        await navigator.clipboard.writeText(source.textContent);
        copy.textContent = "Copied";
      } catch {
        select(source);
        copy.textContent = "Selected";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
  }

  const saved = remembered();
  choose(CHOICES.includes(saved) ? saved : "auto");
})();
