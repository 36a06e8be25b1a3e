"use strict";
(() => {
  const tip = document.getElementById("tip");
  const element = (name, className, text) => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const place = (x, y) => {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth - 6 ? x - 14 - box.width : x + 14;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - box.height - 6))}px`;
  };
  const say = (parts, x, y) => {
    tip.replaceChildren(...parts);
    place(x, y);
  };
  const decimal = (value) => (Math.abs(value) >= 1e4 && Math.abs(value) < 1e9 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4))));
  const seconds = (value) => {
    if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
    const whole = Math.round(value);
    return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  };
  const reasons = JSON.parse(document.getElementById("reasons")?.textContent ?? "[]");
  const why = (stripe) => {
    const text = reasons[stripe.dataset.why];
    return text ? [element("div", "why", text)] : [];
  };
  const nearest = (sorted, wanted) => {
    let low = 0, high = sorted.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
  };

  document.addEventListener("pointermove", (event) => {
    const told = event.target.closest("[data-tip]");
    if (told) say([told.dataset.tip, ...why(told)], event.clientX, event.clientY);
    else if (!event.target.closest(".plot")) tip.hidden = true;
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  for (const axes of document.querySelectorAll(".axes")) {
    const source = axes.querySelector("script");
    if (!source) continue;
    const data = JSON.parse(source.textContent);
    const plot = axes.querySelector(".plot");
    const lines = data.lines.filter((line) => line.x.length);
    const across = (x) => (x - data.x[0]) / (data.x[1] - data.x[0]);
    const up = (y) => {
      const [low, high, value] = data.log ? [...data.y, Math.max(y, data.y[0] / 10)].map(Math.log10) : [...data.y, y];
      return (value - low) / (high - low);
    };
    const strips = [...axes.querySelectorAll(".strip")].map((strip) =>
      [strip.dataset.run, [...strip.querySelectorAll("span")].map((stripe) => [parseFloat(stripe.style.left), parseFloat(stripe.style.width), stripe])]);
    const cursor = element("span", "cursor", "");
    const points = lines.map((line) => element("span", `point c${line.colour}`, ""));
    let at = 0;

    const clear = () => { cursor.remove(); points.forEach((point) => point.remove()); tip.hidden = true; };
    const show = (x, clientY) => {
      const box = plot.getBoundingClientRect();
      const parts = [element("b", "", data.unit === "wall" ? seconds(x) : `${Math.round(x).toLocaleString("en-US")} samples`)];
      lines.forEach((line, number) => {
        const index = nearest(line.x, x);
        const within = lines.length === 1 || x <= line.x[line.x.length - 1] + 0.01 * data.x[1];
        points[number].remove();
        if (!within) return;
        points[number].style.left = `${100 * across(line.x[index])}%`;
        points[number].style.top = `${100 * (1 - Math.min(1, Math.max(0, up(line.y[index]))))}%`;
        plot.append(points[number]);
        const row = element("div", "", "");
        row.append(element("i", `c${line.colour}`, ""), `${line.name} ${decimal(line.y[index])}`);
        const range = line.range[index];
        if (range && range[0] !== range[1]) row.append(` (${decimal(range[0])} to ${decimal(range[1])})`);
        parts.push(row);
      });
      for (const [run, stripes] of strips) {
        const found = stripes.find(([left, width]) => left <= 100 * across(x) && 100 * across(x) < left + width);
        if (!found) continue;
        parts.push(element("div", "", `${run ? `${run} in ` : "pace "}${found[2].dataset.pace}`), ...why(found[2]));
      }
      cursor.style.left = `${100 * across(x)}%`;
      plot.append(cursor);
      say(parts, box.left + across(x) * box.width, clientY);
    };
    plot.addEventListener("pointermove", (event) => {
      if (event.target.closest("[data-tip]")) { cursor.remove(); points.forEach((point) => point.remove()); return; }
      const box = plot.getBoundingClientRect();
      const x = data.x[0] + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (data.x[1] - data.x[0]);
      if (!lines.length) return;
      at = nearest(lines[0].x, x);
      show(lines.length === 1 ? lines[0].x[at] : x, event.clientY);
    });
    plot.addEventListener("pointerleave", clear);
    plot.addEventListener("blur", clear);
    plot.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (by === undefined || !lines.length) return;
      event.preventDefault();
      at = Math.min(lines[0].x.length - 1, Math.max(0, at + by));
      show(lines[0].x[at], plot.getBoundingClientRect().top + 20);
    });
  }
})();
