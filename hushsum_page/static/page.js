// Reads a picture under the pointer: asks the server for the place, at most every 150 ms. A click asks in the form.
(function () {
  "use strict";
  var next = null, timer = 0, last = "";

  function place(event) {
    var svg = event.target.closest && event.target.closest("svg[data-asks]");
    if (!svg) return null;
    var about = JSON.parse(svg.dataset.about), box = svg.getBoundingClientRect();
    var across = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
    var area = about.area;
    if (across < area[0] || across > area[1] || down < area[2] || down > area[3]) return null;
    var at = about.held.slice();
    at[about.columns[0]] = about.x[0] + (across - area[0]) / (area[1] - area[0]) * (about.x[1] - about.x[0]);
    if (about.y) {
      at[about.columns[1]] = about.y[1] - (down - area[2]) / (area[3] - area[2]) * (about.y[1] - about.y[0]);
    }
    return { asks: svg.dataset.asks, at: at.map(function (each) { return Number(each.toPrecision(5)); }) };
  }

  function parameters(at) {
    var form = document.getElementById("ask");
    if (!form) return "";
    if (form.elements.at) return "at=" + encodeURIComponent(at.join(","));
    return at.map(function (each, number) { return "c" + number + "=" + each; }).join("&");
  }

  function ask() {
    timer = 0;
    var address = next && next.asks + "?" + parameters(next.at);
    if (!address || address === last) return;
    last = address;
    window.htmx.ajax("GET", address, { target: "#reading", swap: "innerHTML" });
  }

  document.addEventListener("pointermove", function (event) {
    next = place(event);
    if (next && !timer) timer = window.setTimeout(ask, 150);
  });

  document.addEventListener("click", function (event) {
    var found = place(event), form = document.getElementById("ask");
    if (!found || !form || !window.htmx) return;
    if (form.elements.at) form.elements.at.value = found.at.join(", ");
    else found.at.forEach(function (each, number) { form.elements["c" + number].value = each; });
    window.htmx.trigger(form, "submit");
  });
})();
