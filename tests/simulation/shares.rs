//! Pictures tell the truth at any size: whatever the width, the colours and letters of a row are there in proportion to the
//! time that the device spends on each kind of op. Shares are read off what was drawn, by taking mean colours apart.

use crate::support::{Dice, costs_of, graph};
use pipesim::pictures::Colors;
use pipesim::{Entry, Look, Panel, Queue, Report, Setup, Span, Timeline, simulation};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

type Color = [f64; 3];

/// How far a drawn share of time may be from the true one.
const TOLERANCE: f64 = 0.02;

/// The end of every timeline, about.
const END: u64 = 1_000_000_000_000;

/// Ops by chance on some devices: kinds in a pattern or not, some thousand or a few, with gaps or without, and sends.
/// Micro-batches are even, so that the terminal darkens none.
fn random(dice: &mut Dice) -> Timeline {
    let kinds: &[char] = if dice.below(2) == 0 { &['F', 'B'] } else { &['F', 'I', 'W'] };
    let devices = 1 + dice.below(3) as u32;
    let mut spans = Vec::new();
    for device in 0..devices {
        let count = 3 << dice.below(11);
        let lasts: Vec<u64> = kinds.iter().map(|_| 1 + dice.below(9) as u64).collect();
        let cycle: Vec<usize> = (0..1 + dice.below(4)).map(|_| dice.below(kinds.len())).collect();
        let (in_cycles, gaps, jitter) = (dice.below(3) > 0, [0, 1, 5][dice.below(3)], dice.below(2));
        let mut at = dice.below(30) as u64 * 10;
        let mut ops: Vec<(usize, u64, u64)> = Vec::new();
        for i in 0..count {
            let kind = if in_cycles { cycle[i % cycle.len()] } else { dice.below(kinds.len()) };
            at += if dice.below(10) < gaps { dice.below(60) as u64 } else { 0 };
            let end = at + lasts[kind] * 10 + (dice.below(9) * jitter) as u64;
            ops.push((kind, at, end));
            at = end;
        }
        let scale = |ticks: u64| (u128::from(ticks) * u128::from(END) / u128::from(at)) as u64;
        for (i, &(kind, start, end)) in ops.iter().enumerate() {
            let op = format!("{device}{}{}", kinds[kind], 2 * i);
            let (start_ns, end_ns) = (scale(start), scale(end));
            let span =
                Span { device, queue: Queue::Compute, op, partner: None, peer: None, phase: None, start_ns, end_ns };
            if dice.below(2) == 0 {
                let middle = start_ns + (end_ns - start_ns) / 2;
                spans.push(Span { queue: Queue::Send, end_ns: middle, ..span.clone() });
            }
            spans.push(span);
        }
    }
    let source = pipesim::simulation::Source::Predicted;
    let mut timeline = Timeline {
        schema_version: 1,
        source,
        schedule: "by chance".into(),
        devices,
        chunks: 1,
        microbatches: 1 << 20,
        time_unit: "unit".into(),
        unit_ns: 1_000_000_000,
        keep: 1.0,
        slices: Vec::new(),
        stub: 0.0,
        kv: 0.0,
        clock_uncertainty_ns: 0,
        lower_bound_ns: None,
        lower_bound_if_split_ns: None,
        typical_makespan_ns: None,
        incomplete_devices: Vec::new(),
        workers: None,
        steps: Vec::new(),
        step: None,
        provenance: BTreeMap::new(),
        spans,
    };
    timeline.sort();
    timeline
}

/// Twenty reports of ten timelines.
fn reports() -> Vec<Report> {
    let mut dice = Dice(14);
    let mut entry = |name: usize| {
        let timeline = random(&mut dice);
        let predicted = Some(Panel::new(timeline.clone(), timeline.metrics()));
        Entry { name: name.to_string(), predicted, ..Entry::default() }
    };
    (0..20).map(|_| Report { entries: (0..10).map(&mut entry).collect(), ..Report::default() }).collect()
}

/// By row, top down: the share of the time shown, which is the longest or the window, that the device spends on each kind, and on
/// sends.
fn truth(report: &Report) -> Vec<(BTreeMap<char, f64>, f64)> {
    let timelines: Vec<&Timeline> = report.entries.iter().flat_map(|e| e.panels()).map(|p| &p.timeline).collect();
    let longest = timelines.iter().map(|t| t.end_ns()).max().unwrap();
    let unit = |units: f64| (units * 1e9) as u64;
    let (from, to) = report.look.window.map_or((0, longest), |(from, to)| (unit(from), unit(to).min(longest)));
    let mut rows = Vec::new();
    for timeline in timelines {
        for device in 0..timeline.devices {
            let (mut kinds, mut sends) = (BTreeMap::new(), 0.0);
            for span in timeline.spans.iter().filter(|span| span.device == device) {
                let shown = span.end_ns.min(to).saturating_sub(span.start_ns.max(from));
                let share = shown as f64 / (to - from) as f64;
                match span.queue {
                    Queue::Compute => *kinds.entry(span.op.chars().nth(1).unwrap()).or_insert(0.0) += share,
                    _ => sends += share,
                }
            }
            rows.push((kinds, sends));
        }
    }
    rows
}

/// The shares of colours in a mean colour, the rest being `ground`: least squares by the normal equations.
fn unmixed(mean: Color, colors: &[Color], ground: Color) -> Vec<f64> {
    let n = colors.len();
    let away = |color: Color| [0, 1, 2].map(|i| color[i] - ground[i]);
    let dot = |a: Color, b: Color| (0..3).map(|i| a[i] * b[i]).sum::<f64>();
    let mut rows: Vec<Vec<f64>> = colors
        .iter()
        .map(|&one| {
            colors.iter().map(|&other| dot(away(one), away(other))).chain([dot(away(one), away(mean))]).collect()
        })
        .collect();
    for i in 0..n {
        let pivot = rows[i].clone();
        for (j, row) in rows.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = row[i] / pivot[i];
            assert!(factor.is_finite(), "colours of row {j} cannot be told apart");
            row.iter_mut().zip(&pivot).for_each(|(a, b)| *a -= factor * b);
        }
    }
    (0..n).map(|i| rows[i][n] / rows[i][i]).collect()
}

/// The largest error of a row: `mean` is its mean colour.
fn error(kinds: &BTreeMap<char, f64>, mean: Color, ground: Color, color: impl Fn(char) -> Color) -> f64 {
    let colors: Vec<Color> = kinds.keys().map(|&kind| color(kind)).collect();
    let found = unmixed(mean, &colors, ground);
    kinds.values().zip(found).map(|(share, found)| (share - found).abs()).fold(0.0, f64::max)
}

fn rgb(hex: &str) -> Color {
    [0, 2, 4].map(|i| f64::from(u8::from_str_radix(&hex[i..i + 2], 16).unwrap()))
}

/// What an SVG's boxes are: colour, opacity, left, top, width and height.
struct Drawing {
    boxes: Vec<(Color, f64, [f64; 4])>,
    /// Left, top, width and height of rows of ops.
    rows: Vec<[f64; 4]>,
    /// By style class.
    colors: BTreeMap<String, Color>,
}

impl Drawing {
    fn of(svg: &str) -> Drawing {
        let colors: BTreeMap<String, Color> = svg
            .split('.')
            .filter_map(|rule| rule.split_once("{fill:#"))
            .filter(|(class, rest)| {
                class.len() < 10 && rest.len() > 6 && !rest.starts_with("fff}") && !rest.starts_with("111}")
            })
            .map(|(class, rest)| (class.to_string(), rgb(&rest[..6])))
            .collect();
        let (mut boxes, mut rows) = (Vec::new(), Vec::new());
        for path in svg.lines().filter(|line| line.starts_with("<path ")) {
            let attribute = |name: &str| Some(path.split_once(&format!(" {name}=\""))?.1.split_once('"').unwrap().0);
            let class = attribute("class").unwrap_or_default();
            let color = attribute("fill").map(|fill| rgb(&fill[1..])).or_else(|| colors.get(class).copied());
            let opacity = attribute("fill-opacity").map_or(1.0, |opacity| opacity.parse().unwrap());
            let rects = attribute("d").unwrap().split('M').filter_map(|rect| {
                let numbers: Vec<f64> = rect.split([' ', 'h', 'v', 'z']).filter_map(|n| n.parse().ok()).collect();
                <[f64; 5]>::try_from(numbers).ok().map(|[x, y, w, h, _]| [x, y, w, h])
            });
            for rect in rects {
                if class == "idle" && rect[2] > 20.0 {
                    rows.push(rect);
                } else if let Some(color) = color.filter(|_| class != "memory" && !class.starts_with("phase")) {
                    boxes.push((color, opacity, rect));
                }
            }
        }
        rows.sort_by(|a, b| a[1].total_cmp(&b[1]));
        Drawing { boxes, rows, colors }
    }

    fn room(&self) -> f64 {
        self.rows.iter().map(|row| row[2]).fold(0.0, f64::max)
    }

    fn kind(&self, kind: char) -> Color {
        self.colors[&format!("{kind}0")]
    }
}

#[test]
fn rectangles_have_the_shares_of_time() {
    let mut worst: [f64; 2] = [0.0; 2];
    for (report, width) in reports().into_iter().zip([None, Some(480.0), Some(2400.0), Some(800.0)].into_iter().cycle())
    {
        let report = Report { look: Look { width, ..Look::default() }, ..report };
        let drawing = Drawing::of(&report.svg());
        let truth = truth(&report);
        assert_eq!(drawing.rows.len(), truth.len());
        for (row, (kinds, sends)) in drawing.rows.iter().zip(truth) {
            let [_, top, _, height] = *row;
            let area = drawing.room() * height;
            let (mut mean, mut sent) = ([255.0; 3], 0.0);
            for &(color, opacity, [_, y, w, h]) in &drawing.boxes {
                if y >= top - 0.01 && y + h <= top + height + 0.01 {
                    (0..3).for_each(|i| mean[i] += (color[i] - 255.0) * opacity * w * h / area);
                } else if (0.0..4.0).contains(&(y - top - height)) {
                    sent += w * opacity / drawing.room();
                }
            }
            worst[0] = worst[0].max(error(&kinds, mean, [255.0; 3], |kind| drawing.kind(kind)));
            worst[1] = worst[1].max((sent - sends).abs());
        }
    }
    println!("rectangles: kinds {:.4}, sends {:.4}", worst[0], worst[1]);
    assert!(worst.iter().all(|&error| error <= TOLERANCE), "shares of time are off by {worst:?}");
}

/// By row, top down: when the device runs no op, as shares of the time shown.
fn idle(report: &Report) -> Vec<Vec<(f64, f64)>> {
    let timelines: Vec<&Timeline> = report.entries.iter().flat_map(|e| e.panels()).map(|p| &p.timeline).collect();
    let longest = timelines.iter().map(|t| t.end_ns()).max().unwrap() as f64;
    let mut rows = Vec::new();
    for timeline in timelines {
        for device in 0..timeline.devices {
            let ops = timeline.spans.iter().filter(|span| span.device == device && span.queue == Queue::Compute);
            let (mut idle, mut free) = (Vec::new(), 0);
            for op in ops {
                if op.start_ns > free {
                    idle.push((free as f64 / longest, op.start_ns as f64 / longest));
                }
                free = free.max(op.end_ns);
            }
            idle.push((free as f64 / longest, 2.0));
            rows.push(idle);
        }
    }
    rows
}

fn idles(idle: &[(f64, f64)], from: f64, to: f64) -> bool {
    idle.iter().any(|gap| gap.0 < to && from < gap.1)
}

/// What is mixed is mixed over some pixels, but no idle time comes from anywhere else.
#[test]
fn no_idle_time_is_drawn_where_nothing_idles() {
    const NEAR: f64 = 8.0;
    let mut checked = 0;
    for (report, width) in
        reports().into_iter().step_by(2).zip([None, Some(480.0), Some(2400.0), Some(800.0)].into_iter().cycle())
    {
        let report = Report { look: Look { width, ..Look::default() }, ..report };
        let drawing = Drawing::of(&report.svg());
        let room = drawing.room();
        for (&[left, top, ..], idle) in drawing.rows.iter().zip(idle(&report)) {
            let in_row = drawing.boxes.iter().filter(|b| (b.2[1] - top).abs() < 0.01);
            let mut boxes: Vec<(f64, f64, f64)> =
                in_row.map(|&(_, o, [x, _, w, _])| (x - left, x + w - left, o)).collect();
            boxes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let near = |from: f64, to: f64| idles(&idle, (from - NEAR) / room, (to + NEAR) / room);
            for &(from, to, opacity) in &boxes {
                assert!(opacity > 0.999 || near(from, to), "{width:?}: {from} to {to} is drawn {opacity}");
            }
            // The line between two boxes is at most 0.6 pixels of them, and 0.015 of their width.
            for pair in boxes.windows(2) {
                let line = ((pair[0].1 - pair[0].0) * 0.016).min(0.6) + 0.011;
                let gap = pair[1].0 - pair[0].1;
                assert!(
                    gap <= line || near(pair[0].1, pair[1].0),
                    "{width:?}: nothing from {} to {}",
                    pair[0].1,
                    pair[1].0
                );
                checked += 1;
            }
        }
        for (cells, lines) in [Colors::True, Colors::Cube, Colors::Sixteen, Colors::None]
            .map(|colors| lines(&report.terminal(120, false, colors)))
            .iter()
            .flat_map(|lines| lines.iter().zip(idle(&report)))
        {
            let share = |number: usize| number as f64 / cells.len() as f64;
            for (number, cell) in cells.iter().enumerate().filter(|(i, _)| !idles(&lines, share(*i), share(*i + 1))) {
                let (character, front, back) = cell;
                let shown = *character != '·' && (*character == ' ' || !back.is_empty() || front.is_empty());
                assert!(shown, "cell {number} is {cell:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 50_000, "{checked}");
}

/// Whichever columns of a picture ops happen to meet, what repeats is drawn alike: devices of 1F1B differ in the time of their
/// steady state alone.
#[test]
fn what_repeats_within_a_pixel_shows_no_marks() {
    let report = predicted("1f1b", 64, 512, 0.0, Look::default());
    for width in (9..18).map(|hundreds| f64::from(hundreds) * 100.0) {
        let drawing =
            Drawing::of(&Report { look: Look { width: Some(width), ..Look::default() }, ..report.clone() }.svg());
        let mean: Color = std::array::from_fn(|i| (drawing.kind('F')[i] + 2.0 * drawing.kind('B')[i]) / 3.0);
        for (device, &[left, top, ..]) in drawing.rows.iter().enumerate() {
            // With F = 1 and B = 2, device d's first B starts at 3p - 2 - 2d; B and F alternate at least to 3m - 2.
            let unit = drawing.room() / (3.0 * (512.0 + 63.0));
            let [from, to] = [3 * 64 - 2 - 2 * device, 3 * 512 - 2].map(|units| left + units as f64 * unit);
            let steady = drawing
                .boxes
                .iter()
                .filter(|(_, _, [x, y, w, _])| (y - top).abs() < 0.01 && *x > from + 16.0 && x + w < to - 16.0);
            for (color, opacity, [x, ..]) in steady {
                let away = (0..3).map(|i| (color[i] - mean[i]).abs()).fold(0.0, f64::max);
                assert!(
                    *opacity == 1.0 && away < 16.0,
                    "{width} wide, device {device}: {color:?} at {x}, mean {mean:?}"
                );
            }
        }
    }
}

/// Width, height and pixels of a PNG whose lines are all filtered by the one above, as this crate writes them.
fn pixels(png: &[u8]) -> (usize, Vec<u8>) {
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
    let (width, length) = (number(16), number(33));
    let mut packed = Vec::new();
    flate2::read::ZlibDecoder::new(&png[41..41 + length]).read_to_end(&mut packed).unwrap();
    let mut pixels: Vec<u8> = Vec::new();
    for line in packed.chunks(1 + width * 3) {
        assert_eq!(line[0], 2);
        let above = pixels.len().checked_sub(width * 3);
        for (i, &byte) in line[1..].iter().enumerate() {
            pixels.push(byte.wrapping_add(above.map_or(0, |above| pixels[above + i])));
        }
    }
    (width, pixels)
}

#[test]
fn pixels_have_the_shares_of_time() {
    // Lines of 0.7 pixels, 5 apart, lie over idle time.
    let ground = [0xc3, 0xc8, 0xd0].map(|c| 255.0 + (f64::from(c) - 255.0) * 0.7 / 5.0);
    let mut worst: f64 = 0.0;
    for report in reports().into_iter().step_by(5) {
        let drawing = Drawing::of(&report.svg());
        let (width, pixels) = pixels(&report.png().unwrap());
        for (row, (kinds, _)) in drawing.rows.iter().zip(truth(&report)) {
            // Above the labels, below the frame.
            let [left, top, _, _] = row.map(|n| (n * 2.0).round() as usize);
            let (mut mean, count) = ([0.0; 3], (drawing.room() * 2.0).round() as usize);
            for y in top + 2..top + 5 {
                for x in left..left + count {
                    (0..3).for_each(|i| mean[i] += f64::from(pixels[(y * width + x) * 3 + i]) / (3 * count) as f64);
                }
            }
            let right = left + (row[2] * 2.0).round() as usize;
            let beyond = (left + count - right) as f64 / count as f64;
            (0..3).for_each(|i| mean[i] += beyond * (ground[i] - 255.0));
            worst = worst.max(error(&kinds, mean, ground, |kind| drawing.kind(kind)));
        }
    }
    println!("pixels: {worst:.4}");
    assert!(worst <= TOLERANCE, "shares of time are off by {worst}");
}

/// The colours of xterm's 256.
fn xterm(number: usize) -> Color {
    const LEVELS: [f64; 6] = [0.0, 95.0, 135.0, 175.0, 215.0, 255.0];
    match number {
        16..232 => [36, 6, 1].map(|step| LEVELS[(number - 16) / step % 6]),
        grey => [(8 + 10 * (grey as i32 - 232)).into(); 3],
    }
}

fn nearest(color: Color) -> Color {
    let away = |other: &Color| (0..3).map(|i| (color[i] - other[i]).powi(2)).sum::<f64>();
    (16..256).map(xterm).min_by(|a, b| away(a).total_cmp(&away(b))).unwrap()
}

/// The lines of devices: by cell, its character and the front and back colour's codes.
fn lines(text: &str) -> Vec<Vec<(char, String, String)>> {
    let rows = text.lines().filter_map(|line| Some(line.split_once('│')?.1.rsplit_once('│')?.0));
    let cells = |row: &str| {
        let (mut front, mut back) = (String::new(), String::new());
        let mut cells = Vec::new();
        for (i, piece) in row.split("\x1b[").enumerate() {
            let (code, rest) = if i == 0 { ("", piece) } else { piece.split_once('m').unwrap() };
            match code.as_bytes() {
                [] => {}
                b"0" => (front, back) = (String::new(), String::new()),
                [b'4', ..] | [b'1', b'0', ..] => back = code.into(),
                _ => front = code.into(),
            }
            cells.extend(rest.chars().map(|c| (c, front.clone(), back.clone())));
        }
        cells
    };
    rows.map(cells).collect()
}

/// By cell: what its left and its right part show, and the share of the left one.
fn parts(cell: &(char, String, String)) -> [(String, f64); 2] {
    let (c, front, back) = cell;
    let part = |left: f64| [(front.clone(), left), (back.clone(), 1.0 - left)];
    match c {
        '▏' | '▎' | '▍' | '▌' | '▋' | '▊' | '▉' => part(f64::from(0x2590 - u32::from(*c)) / 8.0),
        '▐' => part(0.5),
        _ => part(0.0),
    }
}

#[test]
fn cells_have_the_shares_of_time() {
    let all = reports();
    let svg = Drawing::of(&all[0].svg());
    let fronts = |code: &str| code.replacen("48;", "38;", 1);
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    for (report, width) in all.iter().zip([100, 160, 120, 240].into_iter().cycle()) {
        for (name, colors) in [("true", Colors::True), ("256", Colors::Cube)] {
            let lines = lines(&report.terminal(width, false, colors));
            let truth = truth(report);
            assert_eq!(lines.len(), truth.len());
            for (cells, (kinds, _)) in lines.iter().zip(truth) {
                let mut mean = [0.0; 3];
                for (code, share) in cells.iter().flat_map(parts) {
                    let numbers: Vec<f64> = fronts(&code).split(';').skip(2).map(|n| n.parse().unwrap()).collect();
                    let color = match numbers[..] {
                        [number] => xterm(number as usize),
                        [r, g, b] => [r, g, b],
                        _ => [0.0; 3],
                    };
                    (0..3).for_each(|i| mean[i] += color[i] * share / cells.len() as f64);
                }
                let color = |kind| if colors == Colors::Cube { nearest(svg.kind(kind)) } else { svg.kind(kind) };
                let error = error(&kinds, mean, [0.0; 3], color);
                worst.entry(name).and_modify(|worst| *worst = worst.max(error)).or_insert(error);
            }
        }
        for (name, colors) in [("16", Colors::Sixteen), ("letters", Colors::None)] {
            let lines = lines(&report.terminal(width, false, colors));
            for (cells, (kinds, _)) in lines.iter().zip(truth(report)) {
                let mut found: BTreeMap<char, f64> = BTreeMap::new();
                let mut last = '·';
                for cell in cells {
                    // A line and digits belong to the letter before them.
                    last = if cell.0 == '━' || cell.0.is_ascii_digit() { last } else { cell.0 };
                    for (code, share) in parts(cell) {
                        let kind = match code.chars().last() {
                            _ if colors == Colors::None => last,
                            Some('4') => 'F',
                            Some('6') => 'I',
                            Some('2') => 'W',
                            Some('3') => 'B',
                            _ => '·',
                        };
                        *found.entry(kind).or_default() += share / cells.len() as f64;
                    }
                }
                for (kind, share) in kinds {
                    let error = (share - found.get(&kind).unwrap_or(&0.0)).abs();
                    worst.entry(name).and_modify(|worst| *worst = worst.max(error)).or_insert(error);
                }
            }
        }
    }
    println!("cells: {worst:.4?}");
    assert!(worst.values().all(|&error| error <= TOLERANCE), "shares of time are off by {worst:?}");
}

fn predicted(name: &str, p: u32, m: u32, comm: f64, look: Look) -> Report {
    let graph = graph(name, p, m, None).unwrap();
    let costs = costs_of(&graph, &format!("F=1,I=1,W=1,comm={comm}"));
    let timeline = simulation::predict(&graph, &costs, &Setup::default()).unwrap().timeline();
    let predicted = Some(Panel::new(timeline.clone(), timeline.metrics()));
    let entries = vec![Entry { name: name.into(), predicted, ..Entry::default() }];
    Report { entries, look, ..Report::default() }
}

#[test]
fn the_steady_state_is_drawn_once_with_its_count() {
    let look = Look { collapse: true, ..Look::default() };
    // 1F1B: an F and a B, after p - 1 micro-batches have gone in. Interleaved: p micro-batches through every chunk. GPipe: m - p + 1
    // times all devices run one kind.
    for (name, p, m, comm, text) in [
        ("1f1b", 4, 16, 0.0, "× 12, each 3 units long"),
        ("1f1b", 8, 64, 0.0, "× 56, each 3 units long"),
        ("interleaved-1f1b", 4, 32, 0.0, "each 12 units long"),
        ("gpipe", 4, 16, 0.0, "× 13, each 2 units long"),
        ("zb-v", 4, 32, 0.0, "each 3 units long"),
    ] {
        let report = predicted(name, p, m, comm, look.clone());
        let (svg, drawn) = (report.svg(), report.terminal(100, false, Colors::None));
        assert!(svg.contains(text) && drawn.contains(text), "{name}: no {text} in\n{drawn}");
        assert!(drawn.lines().filter(|line| line.contains('│')).all(|line| line.contains('≈')), "{drawn}");
        assert!(report.png().is_ok());
        assert!(svg.len() < Report { look: Look::default(), ..report.clone() }.svg().len(), "{name}");
    }
    let none = "No stretch repeats exactly";
    let mut measured = predicted("1f1b", 4, 16, 0.0, look.clone());
    let timeline = &mut measured.entries[0].predicted.as_mut().unwrap().timeline;
    let mut dice = Dice(3);
    for span in &mut timeline.spans {
        span.end_ns -= dice.below(1000) as u64;
    }
    for report in [measured, predicted("1f1b", 4, 5, 0.0, look)] {
        let (svg, drawn) = (report.svg(), report.terminal(100, false, Colors::None));
        assert!(svg.contains(none) && drawn.contains(none) && !drawn.contains('≈'), "{drawn}");
    }
}

#[test]
fn a_window_shows_its_part_and_true_times() {
    // Curves of memory have a scale of their own, from 0.
    let look = Look { window: Some((100.0, 160.0)), memory: false, ..Look::default() };
    let report = predicted("1f1b", 4, 64, 0.0, look);
    let (svg, drawn) = (report.svg(), report.terminal(100, false, Colors::None));
    for text in [">100<", ">130<", ">160<", ">40<"] {
        assert!(svg.contains(text), "no {text}");
    }
    for text in [">90<", ">170<", ">0<", ">63<"] {
        assert!(!svg.contains(text), "{text}");
    }
    assert!(
        drawn.contains("   100") && drawn.contains(" 160 unit") && drawn.contains("0 ‹") && drawn.contains('›'),
        "{drawn}"
    );
}

#[test]
fn all_ops_of_a_panel_are_named_alike() {
    let form = |label: &str| label.chars().map(|c| if c.is_ascii_digit() { '0' } else { 'K' }).collect::<String>();
    let shortest = |form: String| form.replace("00", "0").replace("00", "0");
    let mut forms = BTreeSet::new();
    for (name, m) in
        ["1f1b", "zb-v", "interleaved-1f1b", "zb-h1"].into_iter().flat_map(|name| [3, 8, 16, 24, 40].map(|m| (name, m)))
    {
        let svg = predicted(name, 4, m, 0.0, Look::default()).svg();
        let groups = svg.lines().filter(|line| line.starts_with("<g class=\"o") || line.starts_with("<text class=\"o"));
        let labels = groups.flat_map(|line| line.split("</text>").filter_map(|text| Some(text.rsplit_once('>')?.1)));
        let found: BTreeSet<String> = labels.filter(|label| !label.is_empty()).map(|l| shortest(form(l))).collect();
        assert!(found.len() <= 1, "{name} with {m} micro-batches: {found:?}");
        forms.extend(found);
    }
    assert!(forms.len() > 1, "{forms:?}");
}

#[test]
fn what_has_no_room_for_letters_says_so() {
    let note = "narrower than a letter";
    for (m, is_said) in [(8, false), (500, true)] {
        let report = predicted("1f1b", 4, m, 0.0, Look::default());
        assert_eq!(report.svg().contains(note), is_said);
        assert_eq!(report.terminal(100, false, Colors::True).contains(note), is_said);
    }
}
