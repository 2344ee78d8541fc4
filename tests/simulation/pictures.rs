//! Pictures for papers: what is asked of their look, in every format.

use crate::report::{all, sample};
use pipesim::internals::report::{Sliver, blend};
use pipesim::pictures::PictureColumn;
use pipesim::{Look, Report};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Read;

/// What the streams of a PDF hold, unpacked.
fn streams(pdf: &[u8]) -> Vec<Vec<u8>> {
    let find = |from: usize, text: &[u8]| (from..pdf.len()).find(|&at| pdf[at..].starts_with(text));
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(start) = find(at, b"\nstream\n") {
        let end = find(start, b"\nendstream").unwrap();
        let mut unpacked = Vec::new();
        flate2::read::ZlibDecoder::new(&pdf[start + 8..end]).read_to_end(&mut unpacked).unwrap();
        out.push(unpacked);
        at = end;
    }
    out
}

/// The number that follows `name` in `text`.
fn number_after(text: &str, name: &str) -> f64 {
    let rest = text.split_once(name).unwrap_or_else(|| panic!("no {name}")).1;
    let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap_or_else(|_| panic!("no number after {name}"))
}

/// A pixel of CSS is 0.75 pt; no date is written; and every character that is drawn can be found and copied.
#[test]
fn a_pdf_has_the_size_of_the_picture_no_date_and_texts() {
    for (name, report) in all() {
        let pdf = report.pdf().unwrap();
        assert!(pdf.starts_with(b"%PDF-1.7") && pdf.trim_ascii_end().ends_with(b"%%EOF"), "{name}");
        let text = String::from_utf8_lossy(&pdf);
        assert!(!text.contains("Date") && !text.contains("NaN") && !text.contains("inf"), "{name}");
        let svg = report.svg();
        let [width, height] = [" width=\"", " height=\""].map(|name| number_after(&svg, name));
        let page: Vec<f64> =
            text.split_once("/MediaBox [").unwrap().1.split([' ', ']']).take(4).map(|n| n.parse().unwrap()).collect();
        let scale = (14_400.0 / width.max(height)).min(0.75);
        assert!(
            page[..2] == [0.0, 0.0] && (page[2] - scale * width).abs() < 0.1 && (page[3] - scale * height).abs() < 0.1,
            "{name}: {page:?}"
        );
        let streams = streams(&pdf);
        // of the regular and of the bold font
        let maps = streams.iter().map(|s| String::from_utf8_lossy(s)).filter(|s| s.contains("beginbfchar"));
        let maps: Vec<_> = maps.collect();
        let texts = svg.split("<text").skip(1).filter_map(|tag| tag.split_once("</text")?.0.split_once('>'));
        let texts: Vec<(bool, &str)> = texts.map(|(tag, text)| (tag.contains("bold"), text)).collect();
        let weights: BTreeSet<bool> = texts.iter().map(|(is_bold, _)| *is_bold).collect();
        assert_eq!(maps.len(), weights.len(), "{name}: a font of each weight in use");
        for (is_bold, map) in weights.iter().zip(&maps) {
            let own = texts.iter().filter(|(weight, text)| weight == is_bold && !text.contains('&'));
            let drawn: BTreeSet<char> = own.flat_map(|(_, text)| text.chars()).collect();
            for c in drawn.into_iter().filter(|c| c.is_ascii_alphanumeric()) {
                assert!(map.contains(&format!("<{:04X}>", u32::from(c))), "{name}: no '{c}', bold: {is_bold}");
            }
        }
        assert_eq!(streams.len(), 1 + 2 * maps.len(), "{name}: a page, and the file and the characters of each font");
        assert!(pdf.len() < 600_000, "{name}: {} bytes", pdf.len());
    }
}

#[test]
fn pictures_are_the_same_twice() {
    let formats: [fn(&Report) -> Vec<u8>; 3] = [|r| r.svg().into_bytes(), |r| r.png().unwrap(), |r| r.pdf().unwrap()];
    for format in formats {
        assert!(format(&sample(4, 8, 0.2, true)) == format(&sample(4, 8, 0.2, true)));
    }
}

/// The numbers that follow `name="` in a drawing.
fn attributes(svg: &str, name: &str) -> Vec<f64> {
    let parts: Vec<&str> = svg.split(&format!(" {name}=\"")).skip(1).collect();
    parts.into_iter().filter_map(|rest| rest.split_once('"')?.0.parse().ok()).collect()
}

#[test]
fn pictures_have_the_width_and_the_font_that_are_asked_for() {
    for (width, font) in [(317.0, 9.5), (320.0, 11.5), (600.0, 11.5), (1200.0, 11.5), (1200.0, 23.0), (2400.0, 18.0)] {
        for both in [false, true] {
            let mut report = sample(4, 8, 0.2, both);
            (report.look.width, report.look.font_size) = (Some(width), Some(font));
            let svg = report.svg();
            let body = svg.split_once("</style>").unwrap().1;
            assert!((number_after(&svg, " width=\"") - width).abs() < 0.01, "{width}");
            let sizes = attributes(body, "font-size");
            assert!(sizes.iter().any(|size| (size - font).abs() < 0.01), "{width}: no text of {font}");
            // The smallest texts are the scale of a curve.
            assert!(sizes.iter().all(|size| *size >= font * 0.55), "{width}: texts smaller than half the size");
            let outside = attributes(body, "x").into_iter().filter(|x| *x > width || *x < 0.0);
            assert_eq!(outside.count(), 0, "{width}: a text outside");
            for path in body.split(" d=\"").skip(1).map(|rest| rest.split_once('"').unwrap().0) {
                for rect in path.split('M').filter(|rect| rect.contains('h')) {
                    let x: f64 = rect.split(' ').next().unwrap().parse().unwrap();
                    let w = rect.split('h').nth(1).unwrap().split('v').next().unwrap();
                    let w: f64 = w.trim_end_matches('z').parse().unwrap_or(0.0);
                    assert!(x >= 0.0 && x + w <= width + 0.1, "{width}: a box from {x}, {w} wide");
                }
            }
        }
    }
}

#[test]
fn rows_have_the_height_and_the_figures_that_are_asked_for() {
    for width in [317.0, 1200.0] {
        let mut report = sample(4, 8, 0.2, false);
        report.look.width = Some(width);
        report.look.row_height = Some(30.0);
        report.look.columns = Some(vec![PictureColumn::Bubble, PictureColumn::Peak]);
        let svg = report.svg();
        let rows = svg.lines().filter(|line| line.contains("class=\"idle\"") && line.contains("v30h")).count();
        assert_eq!(rows, 4 * 4, "{width}");
        assert!(svg.contains(">peak<") && !svg.contains(">busy<"), "{width}");
        assert!(svg.contains(">bubble ") && !svg.contains(">makespan ") && !svg.contains("lower bound"), "{width}");
    }
}

/// The naive schedule takes m p (F + B) = 3,072 units, 1F1B (m + p - 1) (F + B) = 777.
#[test]
fn a_slow_schedule_is_cut_only_if_it_may_be() {
    let of = |look: Look| Report { look, ..sample(4, 256, 0.0, false) }.svg();
    assert!(of(Look::default()).contains("cut here; continues to"));
    assert!(!of(Look { cut: false, ..Look::default() }).contains("cut here"));
}

#[test]
fn what_is_not_asked_for_is_not_drawn() {
    let drawn = |change: fn(&mut Report)| {
        let mut report = sample(4, 8, 0.2, false);
        change(&mut report);
        report.svg()
    };
    let all = drawn(|_| {});
    let classes = ["memory", "receive0"].map(|class| format!("class=\"{class}\""));
    classes.iter().for_each(|class| assert!(all.contains(class), "{class}"));
    let bare = drawn(|report| {
        (report.look.memory, report.look.waits, report.look.title) = (false, false, Some(String::new()));
    });
    classes.iter().for_each(|class| assert!(!bare.contains(class), "{class}"));
    assert!(!bare.contains("activations held") && !bare.contains("wait for data"));
    let title = format!(">{}<", sample(4, 8, 0.2, false).title);
    assert!(all.contains(&title) && !bare.contains(&title));
    let capped = drawn(|report| {
        for entry in &mut report.entries {
            entry.predicted.as_mut().unwrap().memory_cap = Some(5.0);
        }
    });
    assert!(capped.contains("class=\"cap\"") && capped.contains(">cap 5<") && !all.contains("class=\"cap\""));
}

/// 1F1B holds min(m, p - d) activations on device d at its peak (Narayanan et al., 2021), and none in the end.
#[test]
fn figures_of_memory_are_written() {
    let folder = tempfile::tempdir().unwrap();
    sample(4, 8, 0.0, false).save(folder.path().join("")).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let (text, json) = (read("memory.csv"), serde_json::from_str::<Value>(&read("report.json")).unwrap());
    let one = json["schedules"].as_array().unwrap().iter().find(|one| one["schedule"] == "1f1b").unwrap();
    for device in 0..4 {
        let begin = format!("1f1b,predicted,{device},");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&begin));
        let held: Vec<f64> = lines.map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
        assert_eq!(held.iter().copied().fold(0.0, f64::max), (4 - device) as f64, "device {device}");
        let levels = one["predicted"]["memory"][device].as_array().unwrap().iter();
        assert_eq!(levels.map(|level| level[1].as_f64().unwrap()).collect::<Vec<_>>(), held, "device {device}");
        assert_eq!(*held.last().unwrap(), 0.0);
    }
}

/// Perfetto shows seconds: a unit that is no time is one, however many of them the step has.
#[test]
fn a_unit_without_a_name_is_a_second_in_traces() {
    for unit_ns in [1_000_000_000_u64, 1000, 1 << 40] {
        let mut report = sample(2, 2, 0.0, false);
        let timeline = &mut report.entries[0].predicted.as_mut().unwrap().timeline;
        let scaled = |ns: u64| (u128::from(ns) * u128::from(unit_ns) / 1_000_000_000) as u64;
        for span in &mut timeline.spans {
            (span.start_ns, span.end_ns) = (scaled(span.start_ns), scaled(span.end_ns));
        }
        timeline.unit_ns = unit_ns;
        let trace: Value = serde_json::from_str(&report.trace()).unwrap();
        let mut events = trace["traceEvents"].as_array().unwrap().iter();
        let forward = events.find(|event| event["ph"] == "X" && event["name"] == "0F0").unwrap();
        assert_eq!(forward["dur"].as_f64(), Some(1e6), "{unit_ns}");
    }
}

/// booktabs: three rules, as many cells in each row as there are columns.
#[test]
fn tables_in_latex_have_their_columns() {
    for (name, report) in all() {
        let text = report.latex();
        for table in text.split("\\begin{tabular}{").skip(1) {
            let (columns, rest) = table.split_once('}').unwrap();
            let body = rest.split_once("\\end{tabular}").unwrap().0;
            let rules: Vec<&str> = body.lines().map(str::trim).filter(|line| line.ends_with("rule")).collect();
            assert_eq!(rules, ["\\toprule", "\\midrule", "\\bottomrule"], "{name}");
            for row in body.lines().filter(|line| line.ends_with("\\\\")) {
                let cells = row.replace("\\&", "").matches('&').count() + 1;
                assert_eq!(cells, columns.len().max(1), "{name}: {row}");
            }
        }
    }
}

/// A text's box: left, top, right and bottom. Widths are Helvetica's, whose narrow, wide and other letters are about these.
fn extent(size: f64, anchor: &str, [x, y]: [f64; 2], text: &str) -> [f64; 4] {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | ' ' | '·' | '(' | ')' => 0.25,
        'm' | 'w' | 'M' | 'W' => 0.8,
        c if c.is_uppercase() => 0.66,
        _ => 0.53,
    };
    let width = text.chars().map(em).sum::<f64>() * size;
    let left = x - width * if anchor.contains("middle") { 0.5 } else { f64::from(u8::from(anchor.contains("end"))) };
    let below = if text.contains(['g', 'j', 'p', 'q', 'y', '(', ',', ';']) { 0.15 } else { 0.0 };
    [left, y - 0.7 * size, left + width, y + below * size]
}

/// The texts of a drawing with their boxes.
fn texts(svg: &str) -> Vec<(String, [f64; 4])> {
    let after =
        |text: &str, name: &str| Some(text.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0.to_string());
    let mut texts = Vec::new();
    let (mut class, mut size) = (String::new(), 0.0);
    for tag in svg.split('<').filter(|tag| tag.starts_with("g ") || tag.starts_with("text ")) {
        (class, size) = after(tag, "class").map_or((class, size), |class| (class, number_after(tag, "font-size=\"")));
        if let Some((attributes, text)) = tag.split_once('>').filter(|_| tag.starts_with("text ")) {
            let at = ["x", "y"].map(|name| after(attributes, name).unwrap().parse().unwrap());
            let text = text
                .replace("&gt;", ">")
                .replace("&lt;", "<")
                .replace("&quot;", "\"")
                .replace("&#39;", "'")
                .replace("&amp;", "&");
            texts.push((text.clone(), extent(size, &class, at, &text)));
        }
    }
    texts
}

#[test]
fn no_text_lies_on_another() {
    let mut found = BTreeSet::new();
    for (name, report) in all().into_iter().filter(|(name, _)| *name != "300 devices") {
        for (width, font) in [
            (317.0, 10.667),
            (240.0, 6.0),
            (317.0, 7.0),
            (480.0, 12.0),
            (639.0, 11.5),
            (640.0, 11.5),
            (900.0, 9.0),
            (1200.0, 11.5),
            (1200.0, 20.0),
        ] {
            for change in 0..6 {
                let mut report = report.clone();
                let look = &mut report.look;
                (look.width, look.font_size) = (Some(width), Some(font));
                match change {
                    0 => (look.title, look.notes) = (Some(String::new()), false),
                    1 => look.window = Some((3.0, 9.0)),
                    2 => look.collapse = true,
                    3 => (look.memory, look.waits) = (false, false),
                    4 => look.causes = true,
                    _ => {}
                }
                let texts = texts(&report.svg());
                for (i, (one, a)) in texts.iter().enumerate() {
                    let other = texts[..i].iter().find(|(_, b)| {
                        let across = a[2].min(b[2]) - a[0].max(b[0]);
                        across > 0.5 && a[3].min(b[3]) - a[1].max(b[1]) > 0.5
                    });
                    if let Some((other, b)) = other {
                        found.insert(format!(
                            "{name}, {width} wide, {font}, look {change}: '{one}' {a:.1?} on '{other}' {b:.1?}"
                        ));
                    }
                }
            }
        }
    }
    assert!(
        found.is_empty(),
        "{} overlaps:\n{}",
        found.len(),
        found.into_iter().take(40).collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn stripes_that_can_be_seen_stay() {
    let ink = |i: u32| if i % 4 < 2 { 255 } else { 0 };
    let sliver = |i: u32| {
        let left = f64::from(i) * 1.5;
        Sliver { left, right: left + 1.5, height: 1.0, color: [ink(i), 255 - ink(i), 0], ink: ink(i) }
    };
    assert_eq!(blend(&(0..100).map(sliver).collect::<Vec<_>>()).len(), 50);
}
