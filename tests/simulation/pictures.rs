//! Pictures for papers: what is asked of their look, in every format.

use crate::report::{all, sample};
use pipesim::internals::report::{self, Report};
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
        let pdf = report::pdf(&report).unwrap();
        assert!(pdf.starts_with(b"%PDF-1.7") && pdf.trim_ascii_end().ends_with(b"%%EOF"), "{name}");
        let text = String::from_utf8_lossy(&pdf);
        assert!(!text.contains("Date") && !text.contains("NaN") && !text.contains("inf"), "{name}");
        let svg = report::svg(&report);
        let [width, height] = [" width=\"", " height=\""].map(|name| number_after(&svg, name));
        let page: Vec<f64> =
            text.split_once("/MediaBox [").unwrap().1.split([' ', ']']).take(4).map(|n| n.parse().unwrap()).collect();
        let scale = (14_400.0 / width.max(height)).min(0.75);
        assert!(
            page[..2] == [0.0, 0.0] && (page[2] - scale * width).abs() < 0.1 && (page[3] - scale * height).abs() < 0.1,
            "{name}: {page:?}"
        );
        let streams = streams(&pdf);
        let map = streams.iter().map(|s| String::from_utf8_lossy(s)).find(|s| s.contains("beginbfchar")).unwrap();
        let drawn: BTreeSet<char> =
            svg.split('>').filter_map(|part| part.split_once("</text")).flat_map(|(text, _)| text.chars()).collect();
        for c in drawn.into_iter().filter(|c| c.is_ascii_alphanumeric()) {
            assert!(map.contains(&format!("<{:04X}>", u32::from(c))), "{name}: no '{c}'");
        }
        assert!(streams.len() == 3 && pdf.len() < 600_000, "{name}: {} streams, {} bytes", streams.len(), pdf.len());
    }
}

#[test]
fn pictures_are_the_same_twice() {
    let formats: [fn(&Report) -> Vec<u8>; 3] =
        [|r| report::svg(r).into_bytes(), |r| report::png(r).unwrap(), |r| report::pdf(r).unwrap()];
    for format in formats {
        assert!(format(&sample(4, 8, 0.2, true)) == format(&sample(4, 8, 0.2, true)));
    }
}
