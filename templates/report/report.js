// A cursor and zoom for each chart, and what is alive at the moment that is clicked on. Without this the page has the peaks.
"use strict";
function human(size) {
  for (const [unit, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (size >= unit) return (size / unit).toFixed(2) + " " + name;
  }
  return size + " B";
}
function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
const pattern = (module) => module.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");

// The table and the flame graph of one rank; `at(event)` has them show that moment.
function aliveAt(place, data, phaseAt) {
  const {start, end, bytes, category, site, sites} = data.blocks;
  const categories = data.names.slice(1);
  const classes = data.stack;
  const table = place.querySelector(".largest");
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const back = place.querySelector(".back");
  const [find, hide] = place.querySelectorAll(".find input");
  const found = place.querySelector(".find output");
  const atPeak = {bodies: [...table.tBodies], text: place.querySelector(".sum").innerHTML,
    breakdown: place.querySelector(".breakdown tbody").innerHTML};
  const flame = flameGraph(place.querySelector(".who"));
  const peak = data.peak;
  let shown = peak;

  function stackOf(number) {
    const stack = [];
    for (let at = site[number]; at; at = sites[at][3]) stack.push(at);
    return stack;
  }
  function where(stack) {
    if (!stack.length) return ["–"];
    const list = stack.map((at) => element("li", {textContent: sites[at][0], title: sites[at][1]}));
    return [element("details", {}, element("summary", {textContent: sites[stack[0]][0]}), element("ol", {}, ...list))];
  }
  function row(group) {
    const {number, module, count, total} = group;
    const blocks = count > 1 ? `${count} x ${human(bytes[number])}` : human(total);
    const cells = [[human(total)], [module || "–"], where(stackOf(number)), [blocks],
      [categories[category[number]]], [phaseAt(start[number])]];
    const made = element("tr", {}, ...cells.map((cell) => element("td", {}, ...cell)));
    heads.forEach((head, index) => { made.cells[index].dataset.head = head; });
    made.cells[2].className = "line";
    return made;
  }
  function share(size, total) {
    return `${human(size)}, ${(100 * size / (total || 1)).toFixed(1)} %`;
  }
  function fill(event, numbers) {
    const alike = new Map();
    for (const number of numbers) {
      const module = pattern(sites[site[number]][2]);
      const own = stackOf(number).find((at) => sites[at][4]);
      const line = own ? sites[own].slice(0, 2) : ["no line outside of libraries", ""];
      const key = [bytes[number], category[number], sites[site[number]][0], module, phaseAt(start[number]), ...line].join("|");
      const group = alike.get(key) || {number, module, line, count: 0, total: 0};
      group.count += 1;
      group.total += bytes[number];
      alike.set(key, group);
    }
    const all = [...alike.values()].sort((a, b) => b.total - a.total);
    const groups = all.slice(0, 16);
    const sums = data.columns.find(([at]) => at === event).slice(2);
    const total = sums.reduce((a, b) => a + b, 0);
    const lines = new Map();
    all.forEach((group, index) => {
      const line = lines.get(group.line.join("|")) || {name: group.line, groups: [], total: 0};
      if (index < groups.length) line.groups.push(group);
      line.total += group.total;
      lines.set(group.line.join("|"), line);
    });
    const listed = [...lines.values()].filter((line) => line.groups.length).sort((a, b) => b.total - a.total);
    const bodies = listed.map(({name, groups: its, total: size}) => {
      const head = element("th", {scope: "rowgroup", colSpan: 6, textContent: `${name[0]}: ${share(size, total)}`, title: name[1]});
      const named = listed.length > 1 || name[1] ? [element("tr", {className: "own"}, head)] : [];
      return element("tbody", {}, ...named, ...its.map(row));
    });
    const others = total - groups.reduce((sum, group) => sum + group.total, 0);
    if (others) {
      const size = element("td", {textContent: human(others)});
      size.dataset.head = heads[0];
      bodies.push(element("tbody", {className: "rest"},
        element("tr", {}, size, element("td", {colSpan: 5, textContent: "all others"}))));
    }
    replaceBodies(bodies);
    [...place.querySelectorAll(".breakdown tbody tr")].forEach((row, index) => {
      row.children[1].textContent = human(sums[index]);
      row.children[2].textContent = (100 * sums[index] / (total || 1)).toFixed(1) + " %";
    });
    place.querySelector(".sum").textContent = `${human(total)} in blocks of torch's allocator, after event ${event.toLocaleString("en")}.`;
  }
  function at(event) {
    const numbers = start.map((_, number) => number).filter((number) => start[number] <= event && event < end[number]);
    const isPeak = event === peak;
    for (const when of place.querySelectorAll(".when")) {
      when.textContent = isPeak ? "at the peak" : `after event ${event.toLocaleString("en")} (${phaseAt(event)})`;
    }
    shown = event;
    if (isPeak) {
      replaceBodies(atPeak.bodies);
      place.querySelector(".sum").innerHTML = atPeak.text;
      place.querySelector(".breakdown tbody").innerHTML = atPeak.breakdown;
    } else fill(event, numbers);
    back.hidden = isPeak;
    const tree = {name: "all", title: "", bytes: 0, children: new Map()};
    for (const number of numbers) {
      const stack = stackOf(number).filter((at) => !hide.checked || sites[at][4]);
      const frames = stack.reverse().map((at) => [sites[at][0], sites[at][1], "line"]);
      const module = pattern(sites[site[number]][2]);
      if (module) frames.push([module, "module", "module"]);
      frames.push([categories[category[number]], "category", classes[category[number]]]);
      let node = tree;
      node.bytes += bytes[number];
      for (const [name, title, kind] of frames) {
        if (!node.children.has(name)) node.children.set(name, {name, title, kind, bytes: 0, children: new Map(), parent: node});
        node = node.children.get(name);
        node.bytes += bytes[number];
      }
    }
    flame.show(tree);
    search();
  }
  function replaceBodies(bodies) {
    for (const body of [...table.tBodies]) body.remove();
    table.append(...bodies);
  }
  // Rows that do not have the words are hidden; a line of the user's own that has them keeps all of its rows.
  function search() {
    const words = find.value.trim().toLowerCase();
    const has = (part) => part.textContent.toLowerCase().includes(words);
    for (const body of table.tBodies) {
      const head = body.querySelector(".own");
      const rows = [...body.rows].filter((each) => each !== head);
      for (const each of rows) each.hidden = Boolean(words) && !(head && has(head)) && !has(each);
      if (head) head.hidden = rows.every((each) => each.hidden);
    }
    const held = flame.mark(words);
    found.textContent = words ? `“${find.value.trim()}” holds ${held}` : "";
  }
  find.addEventListener("input", search);
  hide.addEventListener("change", () => {
    place.classList.toggle("no-libraries", hide.checked);
    at(shown);
  });
  place.querySelector(".find").hidden = false;
  hide.parentElement.hidden = sites.length < 2;
  back.addEventListener("click", () => at(peak));
  place.querySelector(".hint").hidden = false;
  place.querySelector(".who").hidden = sites.length < 2;
  at(peak);
  return {at};
}

// An icicle of nested boxes in `place`, for a tree of {name, title, kind, bytes, children, parent}: `show` draws it, `mark`
// marks the boxes that have some words, and returns what they hold.
function flameGraph(place) {
  const box = place.querySelector(".flame");
  const said = place.querySelector(".frame-said");
  let whole = null, shown = null, words = "";
  const share = (node) => `${human(node.bytes)}, ${(100 * node.bytes / (whole.bytes || 1)).toFixed(1)} %`;
  function say(node) {
    said.textContent = `${node.name}: ${share(node)}${node.title ? `, ${node.title}` : ""}`;
  }
  const matches = (node) => Boolean(words) && node.name.toLowerCase().includes(words);
  const held = (node) => matches(node) ? node.bytes : [...node.children.values()].reduce((sum, each) => sum + held(each), 0);
  function markBox(made, node) {
    made.classList.toggle("hit", matches(node));
    made.classList.toggle("miss", Boolean(words) && !matches(node));
  }
  function draw(node, focus) {
    const boxes = [];
    let rows = 0;
    shown = node;
    (function add(each, depth, left) {
      const width = each.bytes / (node.bytes || 1);
      if (width < 0.002 && depth) return;
      rows = Math.max(rows, depth + 1);
      const made = element("button", {type: "button", textContent: each.name, className: each.kind || "line",
        title: `${each.name}: ${share(each)}`, tabIndex: -1});
      made.setAttribute("aria-label", `${each.name}: ${share(each)}`);
      made.style.cssText = `left:${left * 100}%;width:${width * 100}%;top:${depth * 1.3}rem`;
      made.node = each;
      markBox(made, each);
      boxes.push({made, each, depth, left});
      let from = left;
      for (const child of [...each.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        add(child, depth + 1, from);
        from += child.bytes / (node.bytes || 1);
      }
    })(node, 0, 0);
    box.replaceChildren(...boxes.map(({made}) => made));
    box.style.height = rows * 1.3 + .1 + "rem";
    boxes[0].made.tabIndex = 0;
    const go = (other) => {
      if (!other) return;
      for (const {made} of boxes) made.tabIndex = -1;
      other.made.tabIndex = 0;
      other.made.focus();
    };
    boxes.forEach((one, index) => {
      one.made.addEventListener("focus", () => say(one.each));
      one.made.addEventListener("pointerenter", () => say(one.each));
      one.made.addEventListener("click", () => draw(one.each === shown && one.each.parent ? one.each.parent : one.each, true));
      one.made.addEventListener("keydown", (event) => {
        const alike = boxes.filter(({depth}) => depth === one.depth);
        const place = alike.indexOf(one);
        const target = {
          ArrowDown: () => boxes[index + 1] && boxes[index + 1].depth > one.depth ? boxes[index + 1] : null,
          ArrowUp: () => boxes.slice(0, index).filter(({depth}) => depth === one.depth - 1).at(-1),
          ArrowRight: () => alike[place + 1], ArrowLeft: () => alike[place - 1],
        }[event.key];
        if (event.key === "Escape") draw(whole, true);
        if (!target) return;
        event.preventDefault();
        go(target());
      });
    });
    if (focus) boxes[0].made.focus();
  }
  return {
    show(tree) { whole = tree; draw(tree, false); },
    mark(text) {
      words = text;
      for (const made of box.children) markBox(made, made.node);
      return share({bytes: held(whole)});
    },
  };
}

for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const count = data.columns.length;
  const views = figure.querySelectorAll("svg.view");
  const plot = figure.querySelector(".plot");
  const slider = figure.querySelector("input[type=range]");
  const output = figure.querySelector("output");
  const cursor = figure.querySelector(".cursor");
  const labels = [...figure.querySelectorAll(".steps span")];
  const fails = [...figure.querySelectorAll(".fails")];
  let first = 0, width = count, dragFrom = null;

  const phaseAt = (event) => data.phases.filter(([start]) => start <= event).at(-1)[1];
  function say(column) {
    const [event, ...sizes] = data.columns[column];
    const phase = phaseAt(event);
    const parts = sizes.slice(1).map((size, index) => [size, data.names[index + 1]]).filter(([size]) => size);
    const total = parts.reduce((sum, [size]) => sum + size, 0);
    parts.sort((a, b) => b[0] - a[0]);
    output.textContent = `Event ${event.toLocaleString("en")} (${phase}): ${human(total)} allocated, ${human(sizes[0])} reserved; ` +
      parts.map(([size, name]) => `${name} ${human(size)}`).join(", ");
    slider.setAttribute("aria-valuetext", output.textContent);
    cursor.setAttribute("d", `M${column + 0.5},0V1000`);
  }
  function show(from, columns) {
    width = Math.max(Math.min(20, count), Math.min(count, Math.round(columns)));
    first = Math.max(0, Math.min(count - width, Math.round(from)));
    for (const view of views) {
      view.setAttribute("viewBox", `${first} 0 ${width} ${view.viewBox.baseVal.height}`);
    }
    const inside = labels.filter((label) => label.dataset.x > first && label.dataset.x <= first + width);
    const stride = Math.ceil(inside.length / 8);
    for (const label of labels) label.hidden = true;
    inside.forEach((label, index) => {
      label.hidden = index % stride !== 0;
      label.style.left = (label.dataset.x - first) / width * 100 + "%";
    });
    for (const label of fails) {
      const place = (label.dataset.x - first) / width;
      label.hidden = place < 0 || place > 1;
      label.style.left = place * 100 + "%";
      label.classList.toggle("early", place < 0.5);
    }
    slider.min = first;
    slider.max = first + width - 1;
    say(Number(slider.value));
  }
  function columnAt(event) {
    const box = plot.getBoundingClientRect();
    const share = Math.max(0, Math.min(0.9999, (event.clientX - box.left) / box.width));
    return Math.floor(first + share * width);
  }
  plot.addEventListener("pointermove", (event) => {
    slider.value = columnAt(event);
    say(Number(slider.value));
  });
  plot.addEventListener("pointerdown", (event) => { dragFrom = columnAt(event); });
  plot.addEventListener("pointerup", (event) => {
    const to = columnAt(event);
    if (dragFrom !== null && Math.abs(to - dragFrom) > width / 50) show(Math.min(dragFrom, to), Math.abs(to - dragFrom));
    else if (dragFrom !== null) alive.at(data.columns[to][0]);
    dragFrom = null;
  });
  slider.addEventListener("input", () => say(Number(slider.value)));
  slider.addEventListener("change", () => alive.at(data.columns[Number(slider.value)][0]));
  figure.querySelector(".buttons").addEventListener("click", (event) => {
    const zoom = event.target.dataset.zoom;
    const middle = Number(slider.value);
    if (zoom === "in") show(middle - width / 4, width / 2);
    if (zoom === "out") show(middle - width, width * 2);
    if (zoom === "all") show(0, count);
  });
  figure.querySelector(".controls").hidden = false;
  const alive = aliveAt(figure.parentElement.querySelector(".alive"), data, phaseAt);
  const totals = data.columns.map(([, , ...sizes]) => sizes.reduce((sum, size) => sum + size, 0));
  slider.value = totals.indexOf(Math.max(...totals));
  show(0, count);
}
