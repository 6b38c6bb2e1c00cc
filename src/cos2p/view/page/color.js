// Colours that people with any kind of colour vision can tell apart, for light and dark. Shape or text always says it too.
(() => {
  "use strict";
  // After Okabe and Ito, darkened or lightened where a line would be too faint on the ground.
  const SERIES = {
    light: ["#0072b2", "#d55e00", "#009271", "#a8447c", "#9a7400", "#3b8bc2", "#5d6470", "#7b4fb5"],
    dark: ["#56b4e9", "#f0a04b", "#34c79d", "#e796c3", "#e8d94a", "#9bc8f0", "#b3b9c4", "#b99cf0"],
  };
  const DASHES = ["", "7 4", "2 3", "10 3 2 3", "1 3", "12 4", "4 2 1 2", "6 2"];

  // Light to dark by one direction of lightness, so that it also reads in grey.
  const RAMP = {
    light: ["#eef5ea", "#c3e3d3", "#7cc6c2", "#3b9cba", "#2668a4", "#1b2f6c"],
    dark: ["#1b2733", "#1d4a68", "#23809b", "#4db5aa", "#a3dcae", "#f2f8d2"],
  };
  // Fresh is blue, stale is orange: the pair that survives every colour blindness.
  const STALE = {
    light: ["#2f7fb8", "#86b7d8", "#f0c75e", "#e58f2f", "#bf4a12"],
    dark: ["#4fa3dd", "#9ccdec", "#f3d374", "#ee9a3e", "#e0662b"],
  };

  // From the first exit to the last: neighbours differ in hue, not only in lightness.
  const SPECTRUM = {
    light: ["#6a2c91", "#2b63b8", "#00857c", "#4c8c14", "#a87800", "#c4451c"],
    dark: ["#c9a2f2", "#7db6f7", "#48d1bf", "#a2d85c", "#f0cd52", "#f58d5a"],
  };

  const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");
  const series = (index) => SERIES[theme()][index % SERIES.light.length];
  const dash = (index) => DASHES[index % DASHES.length];

  function parse(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function between(stops, share) {
    const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
    const left = Math.min(stops.length - 2, Math.floor(place));
    const [a, b] = [parse(stops[left]), parse(stops[left + 1])];
    return `rgb(${a.map((value, i) => Math.round(value + (b[i] - value) * (place - left))).join(",")})`;
  }

  let steps = null; // the ramp in 256 steps, made once per theme: heat maps ask thousands of times

  /** The sequential ramp at a share in [0, 1]. */
  function ramp(share) {
    steps = steps ?? Array.from({ length: 256 }, (_, at) => between(RAMP[theme()], at / 255));
    return steps[Math.max(0, Math.min(255, Math.round(255 * share)))];
  }

  const spectrum = (share) => between(SPECTRUM[theme()], share);

  const STALE_STEPS = STALE.light.length;

  /** The colour of an update that is `tau` aggregations late; null when it is not known yet. */
  function stale(tau) {
    if (tau === null || tau === undefined) return css("--quiet");
    return STALE[theme()][Math.min(STALE_STEPS - 1, Math.max(0, tau))];
  }

  let cache = new Map();

  /** A colour of the style sheet, for canvases. */
  function css(name) {
    if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return cache.get(name);
  }

  /** Black or white, whichever can be read on the ramp at this share. */
  const onRamp = (share) => ((theme() === "light") === share > 0.55 ? "#ffffff" : "#10151c");

  const listeners = new Set();

  /** Call when the theme changes: canvases have to be drawn anew. */
  function onTheme(listener) {
    listeners.add(listener);
  }

  function themeChanged() {
    cache = new Map();
    steps = null;
    for (const listener of listeners) listener();
  }

  cos2p.color = { series, dash, ramp, spectrum, stale, STALE_STEPS, css, onRamp, theme, onTheme, themeChanged };
})();
