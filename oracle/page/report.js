// Draws the charts of a report from the data that the page carries.
import {View, parse} from 'vega';

const data = JSON.parse(document.getElementById('data').textContent);
const colours = ['#4c78d8', '#e07b28', '#2f9e6e', '#c8467a', '#8a6fd1', '#a8842c', '#1fa3b5', '#7b8794'];
const short = value => Number(value).toPrecision(4).replace(/\.?0+(e|$)/, '$1');

/// A figure with title, explanation, drawing, and the numbers as a table.
function figure(place, title, explanation, columns, rows, spec) {
  if (rows.length === 0) return;
  const box = document.createElement('figure');
  const caption = document.createElement('figcaption');
  caption.textContent = title;
  const text = document.createElement('p');
  text.textContent = explanation;
  const drawing = document.createElement('div');
  const details = document.createElement('details');
  const summary = document.createElement('summary');
  summary.textContent = `${rows.length} numbers of this chart`;
  const wide = document.createElement('div');
  wide.className = 'wide';
  const table = document.createElement('table');
  const header = table.createTHead().insertRow();
  for (const column of columns) {
    const cell = document.createElement('th');
    cell.scope = 'col';
    cell.textContent = column;
    header.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const column of columns) line.insertCell().textContent = typeof row[column] === 'number' ? short(row[column]) : row[column] ?? '';
  }
  wide.append(table);
  details.append(summary, wide);
  box.append(caption, text, drawing, details);
  place.append(box);
  const width = Math.max(200, Math.min(440, box.clientWidth - 110));
  const view = new View(parse({$schema: 'https://vega.github.io/schema/vega/v5.json', width, height: 230, padding: 5, autosize: 'pad',
                               description: `${title}. ${explanation}`, ...spec(width)}),
                        {renderer: 'svg', container: drawing, hover: false});
  return view.runAsync();
}

const axis = (orient, scale, title, more) => ({orient, scale, title, grid: true, labelOverlap: true, titlePadding: 8, ...more});
const powers = {format: '.2~g', tickCount: 6};
/// Powers of ten on both sides of zero, for a scale that is logarithmic away from it.
const decades = largest => [...Array(Math.max(1, Math.ceil(Math.log10(largest + 1)))).keys()].filter((at, _, all) => at % Math.ceil(all.length / 4) === 0).flatMap(at => [-(10 ** at), 10 ** at]).concat(0);
const legend = field => ({orient: 'bottom', direction: 'horizontal', columns: 4, symbolType: 'square', ...field});
const colour = outputs => ({name: 'colour', type: 'ordinal', domain: outputs, range: colours});
const constant = (name, field, value, extra) => ({type: 'rule', encode: {enter: {
  x: {value: 0}, x2: {signal: 'width'}, y: {scale: 'y', value}, strokeDash: {value: [5, 4]}, stroke: {value: '#888'}, ...extra}}});

const positive = (rows, field) => rows.filter(row => row[field] > 0);
const cells = (report, name) => Object.entries(report.outputs).flatMap(([output, profile]) =>
  Object.entries(profile[name]).map(([place, [entries, lowest, highest, bound]]) =>
    ({output, place: Number(place), entries, lowest: Number(lowest), highest: Number(highest), bound: Number(bound), largest: Math.max(Math.abs(lowest), Math.abs(highest))}))
    .sort((a, b) => a.place - b.place));

function charts(report, place) {
  const outputs = Object.keys(report.outputs), drawn = [];
  const draw = (...all) => drawn.push(figure(place, ...all));
  const domain = rows => ({data: 'rows', field: rows});

  const inputs = cells(report, 'by_input');
  draw('Signed error over the input', `Lowest and highest error in ulp of the entries whose ${report.ordinal} lies there; the axis runs through the codes of ${report.dtype}, from the most negative number to the largest.`,
       ['output', 'place', 'entries', 'lowest', 'highest'], inputs, () => ({
         data: [{name: 'rows', values: inputs}],
         scales: [{name: 'x', type: 'linear', range: 'width', domain: [-128, 128]},
                  {name: 'y', type: 'symlog', range: 'height', nice: true, domain: {fields: [{data: 'rows', field: 'lowest'}, {data: 'rows', field: 'highest'}]}}, colour(outputs)],
         axes: [axis('bottom', 'x', 'code of the input (128: largest finite)'), axis('left', 'y', 'error in ulp', {format: '.2~g', values: decades(Math.max(1, ...inputs.map(row => row.largest)))})], legends: [legend({fill: 'colour'})],
         marks: [{type: 'rule', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'place'}, y: {scale: 'y', field: 'lowest'}, y2: {scale: 'y', field: 'highest'},
                                                                      stroke: {scale: 'colour', field: 'output'}, strokeWidth: {value: 2}, opacity: {value: 0.75}}}}]}));

  const binades = positive(cells(report, 'by_binade'), 'largest');
  const bounds = positive(binades, 'bound');
  draw('Largest error per binade', 'Dots: largest error among results of that binade; lines: largest bound there.', ['output', 'place', 'entries', 'largest', 'bound'], binades, () => ({
    data: [{name: 'rows', values: binades}, {name: 'bounds', values: bounds}],
    scales: [{name: 'x', type: 'linear', range: 'width', domain: domain('place'), zero: false, nice: true},
             {name: 'y', type: 'log', range: 'height', nice: true, domain: {fields: [{data: 'rows', field: 'largest'}, {data: 'bounds', field: 'bound'}]}}, colour(outputs)],
    axes: [axis('bottom', 'x', 'exponent of the exact result'), axis('left', 'y', 'ulp', powers)], legends: [legend({fill: 'colour'})],
    marks: [{type: 'group', from: {facet: {name: 'part', data: 'bounds', groupby: 'output'}},
             marks: [{type: 'line', from: {data: 'part'}, encode: {enter: {x: {scale: 'x', field: 'place'}, y: {scale: 'y', field: 'bound'}, stroke: {scale: 'colour', field: 'output'}, strokeWidth: {value: 1}, opacity: {value: 0.6}}}}]},
            {type: 'symbol', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'place'}, y: {scale: 'y', field: 'largest'}, size: {value: 14}, fill: {scale: 'colour', field: 'output'}}}}]}));

  const survival = outputs.flatMap(output => {
    const errors = Object.entries(report.outputs[output].errors).map(([at, entries]) => ({at: Number(at), entries})).sort((a, b) => b.at - a.at);
    const all = errors.reduce((sum, row) => sum + row.entries, 0);
    let above = 0;
    return errors.map(row => ({output, error: 2 ** (row.at / 4), share: (above += row.entries) / all})).filter(row => row.error >= 2 ** -12);
  });
  draw('How often is the error that large?', 'Share of the entries with at least that error.', ['output', 'error', 'share'], survival, () => ({
    data: [{name: 'rows', values: survival}],
    scales: [{name: 'x', type: 'log', range: 'width', domain: domain('error'), nice: true}, {name: 'y', type: 'log', range: 'height', domain: domain('share'), nice: true}, colour(outputs)],
    axes: [axis('bottom', 'x', 'error in ulp', powers), axis('left', 'y', 'share of entries', powers)], legends: [legend({fill: 'colour'})],
    marks: [{type: 'group', from: {facet: {name: 'part', data: 'rows', groupby: 'output'}},
             marks: [{type: 'line', from: {data: 'part'}, encode: {enter: {x: {scale: 'x', field: 'error'}, y: {scale: 'y', field: 'share'}, stroke: {scale: 'colour', field: 'output'}, strokeWidth: {value: 2}, interpolate: {value: 'step'}}}}]}]}));

  const lengths = positive(cells(report, 'by_length'), 'largest').map(row => ({...row, n: 2 ** (row.place / 2)}));
  const from = lengths.length ? Math.min(...lengths.map(row => row.n)) : 1, to = lengths.length ? Math.max(...lengths.map(row => row.n)) : 1;
  const guides = [['log n', n => 1 + Math.log2(n)], ['sqrt n', Math.sqrt], ['n', n => n]].flatMap(([guide, f]) => [from, Math.sqrt(from * to), to].map(n => ({guide, n, value: f(n) / f(from)})));
  draw('Error over the length', `Largest error for rows of that many ${report.extent}; grey guides grow like log n, sqrt n and n.`, ['output', 'n', 'entries', 'largest'], lengths, () => ({
    data: [{name: 'rows', values: lengths}, {name: 'guides', values: guides}],
    scales: [{name: 'x', type: 'log', base: 2, range: 'width', domain: domain('n'), nice: true}, {name: 'y', type: 'log', range: 'height', domain: {fields: [{data: 'rows', field: 'largest'}, {data: 'guides', field: 'value'}]}, nice: true}, colour(outputs)],
    axes: [axis('bottom', 'x', report.extent, {format: '~g'}), axis('left', 'y', 'ulp', powers)], legends: [legend({fill: 'colour'})],
    marks: [{type: 'group', from: {facet: {name: 'part', data: 'guides', groupby: 'guide'}}, marks: [{type: 'line', from: {data: 'part'}, encode: {enter: {x: {scale: 'x', field: 'n'}, y: {scale: 'y', field: 'value'}, stroke: {value: '#999'}, strokeDash: {value: [4, 4]}}}}]},
            {type: 'symbol', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'n'}, y: {scale: 'y', field: 'largest'}, size: {value: 30}, fill: {scale: 'colour', field: 'output'}}}}]}));

  const sums = Object.entries(report.sum_by_gap).map(([at, index]) => ({gap: Number(at) / 2, index: Number(index)})).filter(row => row.index > 0).sort((a, b) => a.gap - b.gap);
  draw('Gradient-sum index over the lead of the maximum', `Correct rounding stays below 1 (dashed); a collapsed pair has ${short(report.collapse)} (dashed).`, ['gap', 'index'], sums, () => ({
    data: [{name: 'rows', values: sums}],
    scales: [{name: 'x', type: 'linear', range: 'width', domain: domain('gap'), zero: true, nice: true}, {name: 'y', type: 'log', range: 'height', nice: true, domain: {fields: [{data: 'rows', field: 'index'}, [1, report.collapse]]}}],
    axes: [axis('bottom', 'x', 'largest logit minus the second'), axis('left', 'y', 'gradient-sum index', powers)],
    marks: [constant('one', 'y', 1), constant('collapse', 'y', report.collapse),
            {type: 'symbol', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'gap'}, y: {scale: 'y', field: 'index'}, size: {value: 26}, fill: {value: colours[0]}}}}]}));

  const layouts = report.by_layout.map(({layout, size, cell}) => ({layout, size, entries: cell[0], ratio: Number(cell[2])}));
  draw('Error over size and layout', 'Largest part of the bound that an error used; 1 would break it.', ['layout', 'size', 'entries', 'ratio'], layouts, () => ({
    data: [{name: 'rows', values: layouts}],
    scales: [{name: 'x', type: 'band', range: 'width', domain: {data: 'rows', field: 'size', sort: true}}, {name: 'y', type: 'band', range: 'height', domain: {data: 'rows', field: 'layout', sort: true}},
             {name: 'heat', type: 'linear', domain: [0, 1], clamp: true, range: ['#cfe3f7', '#e07b28', '#b3261e'], interpolate: 'rgb', domainMid: 0.5}],
    axes: [axis('bottom', 'x', 'elements, as a power of two', {grid: false}), axis('left', 'y', null, {grid: false})], legends: [{fill: 'heat', orient: 'bottom', title: 'of the bound', gradientLength: 160, type: 'gradient'}],
    marks: [{type: 'rect', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'size'}, width: {scale: 'x', band: 1, offset: -1}, y: {scale: 'y', field: 'layout'}, height: {scale: 'y', band: 1, offset: -1}, fill: {scale: 'heat', field: 'ratio'}}}}]}));
  return drawn;
}

/// What compares reports.
function comparison(place) {
  const drawn = [], kernels = [...new Set(data.reports.map(report => report.subject))];
  const ratios = data.reports.flatMap(report => Object.entries(report.worst).map(([output, worst]) => ({kernel: report.subject, output, ratio: Number(worst.bound_ratio), ulp: Number(worst.ulp)}))).filter(row => row.ratio > 0);
  const outputs = [...new Set(ratios.map(row => row.output))];
  if (data.reports.length > 1)
    drawn.push(figure(place, 'Kernels side by side', 'Largest part of the bound that an error of that output used.', ['kernel', 'output', 'ulp', 'ratio'], ratios, () => ({
      height: 40 + 24 * ratios.length, data: [{name: 'rows', values: ratios.map(row => ({...row, name: `${row.kernel} ${row.output}`}))}],
      scales: [{name: 'y', type: 'band', range: 'height', domain: {data: 'rows', field: 'name'}, padding: 0.2}, {name: 'x', type: 'log', range: 'width', nice: true, domain: {fields: [{data: 'rows', field: 'ratio'}, [0.01, 1]]}}, colour(outputs)],
      axes: [axis('bottom', 'x', 'of the bound', powers), axis('left', 'y', null, {grid: false, labelLimit: 260})],
      marks: [{type: 'rect', from: {data: 'rows'}, encode: {enter: {y: {scale: 'y', field: 'name'}, height: {scale: 'y', band: 1}, x: {value: 0}, x2: {scale: 'x', field: 'ratio'}, fill: {scale: 'colour', field: 'output'}}}},
              {type: 'rule', encode: {enter: {x: {scale: 'x', value: 1}, y: {value: 0}, y2: {signal: 'height'}, stroke: {value: '#888'}, strokeDash: {value: [5, 4]}}}}]})));
  const speeds = data.speeds.flatMap(({op, kernel, time}) => data.reports.filter(report => report.op === op && report.kernel === kernel).map(report => ({kernel: report.subject, time, ulp: Math.max(...Object.values(report.worst).map(worst => Number(worst.ulp)))}))).filter(row => row.ulp > 0);
  drawn.push(figure(place, 'Accuracy against speed', 'Largest error over the time of a forward call with 1024 classes in cache, in times of a copy of the same data: good is below and left.', ['kernel', 'time', 'ulp'], speeds, () => ({
    data: [{name: 'rows', values: speeds}],
    scales: [{name: 'x', type: 'linear', range: 'width', domain: {data: 'rows', field: 'time'}, zero: true, nice: true}, {name: 'y', type: 'log', range: 'height', domain: {data: 'rows', field: 'ulp'}, nice: true}, colour(kernels)],
    axes: [axis('bottom', 'x', 'time in copies'), axis('left', 'y', 'largest error in ulp', powers)], legends: [legend({fill: 'colour', columns: 2})],
    marks: [{type: 'symbol', from: {data: 'rows'}, encode: {enter: {x: {scale: 'x', field: 'time'}, y: {scale: 'y', field: 'ulp'}, size: {value: 90}, fill: {scale: 'colour', field: 'kernel'}}}}]})));
  const changes = data.ratchet.filter(row => row.before > 0 && row.now > 0);
  drawn.push(figure(place, 'Before and after', 'Largest error in ulp that the baseline stores (ring) and that this run found (dot).', ['output', 'before', 'now'], changes, () => ({
    height: 40 + 24 * changes.length, data: [{name: 'rows', values: changes}],
    scales: [{name: 'y', type: 'band', range: 'height', domain: {data: 'rows', field: 'output'}}, {name: 'x', type: 'log', range: 'width', nice: true, domain: {fields: [{data: 'rows', field: 'before'}, {data: 'rows', field: 'now'}]}}],
    axes: [axis('bottom', 'x', 'ulp', powers), axis('left', 'y', null, {grid: false, labelLimit: 260})],
    marks: [{type: 'rule', from: {data: 'rows'}, encode: {enter: {y: {scale: 'y', field: 'output', band: 0.5}, x: {scale: 'x', field: 'before'}, x2: {scale: 'x', field: 'now'}, stroke: {value: '#888'}}}},
            {type: 'symbol', from: {data: 'rows'}, encode: {enter: {y: {scale: 'y', field: 'output', band: 0.5}, x: {scale: 'x', field: 'before'}, size: {value: 90}, stroke: {value: colours[0]}, strokeWidth: {value: 2}, fill: {value: 'transparent'}}}},
            {type: 'symbol', from: {data: 'rows'}, encode: {enter: {y: {scale: 'y', field: 'output', band: 0.5}, x: {scale: 'x', field: 'now'}, size: {value: 60}, fill: {value: colours[1]}}}}]})));
  return drawn;
}

Promise.all([...comparison(document.getElementById('comparison')), ...data.reports.flatMap((report, i) => charts(report, document.getElementById(`charts-${i}`)))])
  .then(() => { document.documentElement.dataset.charts = 'drawn'; });
