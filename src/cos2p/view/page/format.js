// Numbers in words: every figure has its unit, a missing one is a dash.
(() => {
  "use strict";
  const DASH = "–";
  const known = (value) => typeof value === "number" && Number.isFinite(value);

  function number(value, digits = 0) {
    if (!known(value)) return DASH;
    const text = value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return minus(/[1-9]/.test(text) ? text : text.replace("-", "")); // no minus before a zero
  }

  const minus = (text) => text.replace("-", "−");

  /** A figure on an axis: as many digits as its step needs. */
  function onAxis(value, step) {
    if (!step || Math.abs(value) >= 1e7) return short(value);
    return number(value, Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))));
  }

  /** About three significant figures, as an axis or a tooltip wants them. */
  function short(value) {
    if (!known(value)) return DASH;
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return minus(value.toExponential(1));
    const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    return number(value, digits);
  }

  /** A share as a percentage. */
  const percent = (share, digits = 1) => (known(share) ? `${number(100 * share, digits)} %` : DASH);

  function bytes(count) {
    if (!known(count)) return DASH;
    const units = ["B", "kB", "MB", "GB", "TB"];
    let step = 0;
    let size = Math.abs(count);
    while (size >= 999.5 && step < units.length - 1) { size /= 1000; step += 1; }
    return `${count < 0 ? "−" : ""}${number(size, step && size < 99.95 ? 1 : 0)} ${units[step]}`;
  }

  /** 4 µs, 12 ms, 8.4 s, 12 min 05 s, 3 h 20 min, 2 d 4 h. */
  function duration(seconds) {
    if (!known(seconds)) return DASH;
    const sign = seconds < 0 ? "−" : "";
    const size = Math.abs(seconds);
    const two = (value) => String(value).padStart(2, "0");
    if (size === 0) return "0 s";
    if (size < 1e-3) return `${sign}${number(size * 1e6)} µs`;
    if (size < 1) return `${sign}${number(size * 1e3)} ms`;
    if (size < 59.95) return `${sign}${number(size, 1)} s`;
    const whole = Math.round(size);
    if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 86400) return `${sign}${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${sign}${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
  }

  /** A moment on an axis: short, in the unit that suits the axis' step. */
  function clock(seconds, step) {
    if (seconds === 0) return "0";
    if (step >= 86400) return `${short(seconds / 86400)} d`;
    if (step >= 3600) return `${short(seconds / 3600)} h`;
    if (step >= 60) return `${short(seconds / 60)} min`;
    if (step >= 1) return seconds >= 600 ? `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")}` : `${number(seconds)} s`;
    if (step >= 1e-3) return `${number(seconds, step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3)} s`;
    return `${number(seconds, 6)} s`;
  }

  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

  /** Round steps for an axis: 1, 2, 5 × 10ⁿ, and for seconds those of a clock. */
  function niceStep(span, wanted, time = false) {
    const rough = span / Math.max(1, wanted);
    if (time) {
      const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
      const found = rough >= 1 ? steps.find((step) => step >= rough) : undefined;
      if (found) return found;
      if (rough > 86400) return 86400 * niceStep(span / 86400, wanted);
    }
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    return [1, 2, 5, 10].find((step) => step * power >= rough) * power;
  }

  function ticks(low, high, wanted, time = false) {
    const step = niceStep(high - low, wanted, time);
    const found = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) found.push(place * step);
    return { step, found };
  }

  /** A long name with its middle left out: device names differ at their ends. */
  function shorten(text, room) {
    if (text.length <= room) return text;
    if (room < 3) return text.slice(-room);
    const tail = Math.ceil((room - 1) * 0.6);
    return `${text.slice(0, room - 1 - tail)}…${text.slice(text.length - tail)}`;
  }

  /** The name as it fits into `room` pixels of the pen's font. */
  function fitted(pen, text, room) {
    let shown = text;
    for (let count = text.length; count > 3 && pen.measureText(shown).width > room; ) {
      count = Math.min(count - 1, Math.floor((count * room) / pen.measureText(shown).width));
      shown = shorten(text, Math.max(3, count));
    }
    return shown;
  }

  const bytesOnAxis = (count) => bytes(count).replace(".0 ", " ");

  cos2p.format = { DASH, known, number, short, onAxis, percent, bytes, duration, clock, plural, niceStep, ticks, shorten, fitted, bytesOnAxis };
})();
