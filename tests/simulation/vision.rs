//! How different readers see the palettes, computed: CIEDE2000 under normal sight, without red or green cones, and in grey. The
//! colours are read from the data of a page.

use pipesim::pictures::Palette;
use pipesim::schedules::Kind;
use pipesim::{Look, Report};
use serde_json::Value;

type Rgb = [u8; 3];

/// How a box is filled and labelled.
#[derive(Clone, Debug)]
struct Tone {
    color: Rgb,
    text: Rgb,
    ground: Rgb,
    line: Rgb,
    hatch: String,
}

fn rgb(hex: &Value) -> Rgb {
    let hex = hex.as_str().unwrap().trim_start_matches('#');
    [0, 2, 4].map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
}

/// The data of a page in a palette.
fn data(palette: Palette) -> Value {
    let html = Report { look: Look { palette, ..Look::default() }, ..Report::default() }.html();
    let data = html.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

/// By chunk of eight: its shade.
const OF_EIGHT: [usize; 8] = [0, 6, 4, 2, 5, 7, 1, 3];

/// Name and eight shades of every class, in the order of legends.
fn classes(palette: Palette) -> Vec<(String, [Tone; 8])> {
    let of = |class: &Value| {
        let shades = class["shades"].as_array().unwrap();
        assert!([1, 8].contains(&shades.len()), "{class}");
        let tone = |shade: usize| {
            let [color, text, ground, line] = [0, 1, 2, 3].map(|i| rgb(&shades[shade.min(shades.len() - 1)][i]));
            Tone { color, text, ground, line, hatch: class["hatch"].as_str().unwrap().to_string() }
        };
        (class["name"].as_str().unwrap().to_string(), std::array::from_fn(tone))
    };
    data(palette)["classes"].as_array().unwrap().iter().map(of).collect()
}

/// All classes but those of thin lanes of messages: ops of every kind, step ops, gathers, reductions.
fn ops(palette: Palette) -> Vec<(String, [Tone; 8])> {
    let ops = classes(palette).into_iter().filter(|(name, _)| name != "send" && name != "wait for data");
    let ops: Vec<(String, [Tone; 8])> = ops.collect();
    assert_eq!(ops.len(), Kind::ALL.len() + 3);
    ops
}

/// Light that an sRGB number stands for, 0 to 1 (IEC 61966-2-1).
fn linear(number: u8) -> f64 {
    let value = f64::from(number) / 255.0;
    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

/// Relative luminance, 0 to 1.
fn luminance(color: Rgb) -> f64 {
    let [r, g, b] = color.map(linear);
    0.2126 * r + 0.7152 * g + 0.0722 * b
}

/// Contrast ratio, 1 to 21 (WCAG 2.2).
fn contrast(a: Rgb, b: Rgb) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

type Vector = [f64; 3];
type Matrix = [Vector; 3];

fn times(matrix: &Matrix, v: Vector) -> Vector {
    matrix.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
}

/// CIELAB of linear sRGB under D65 (IEC 61966-2-1, CIE 15).
fn lab(rgb: Vector) -> Vector {
    const XYZ: Matrix = [
        [0.412_456_4, 0.357_576_1, 0.180_437_5],
        [0.212_672_9, 0.715_152_2, 0.072_175_0],
        [0.019_333_9, 0.119_192_0, 0.950_304_1],
    ];
    const WHITE: Vector = [0.950_47, 1.0, 1.088_83];
    let xyz = times(&XYZ, rgb);
    let f = |i: usize| {
        let t = xyz[i] / WHITE[i];
        if t > 216.0 / 24_389.0 { t.cbrt() } else { (24_389.0 / 27.0 * t + 16.0) / 116.0 }
    };
    let [x, y, z] = [f(0), f(1), f(2)];
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// CIEDE2000 with all weights 1 (CIE 142; G. Sharma, W. Wu, E. Dalal, "The CIEDE2000 color-difference formula", 2005).
fn delta_e([l1, a1, b1]: Vector, [l2, a2, b2]: Vector) -> f64 {
    let seventh = |c: f64| (c.powi(7) / (c.powi(7) + 25f64.powi(7))).sqrt();
    let g = 0.5 * (1.0 - seventh((a1.hypot(b1) + a2.hypot(b2)) / 2.0));
    let (a1, a2) = (a1 * (1.0 + g), a2 * (1.0 + g));
    let (c1, c2) = (a1.hypot(b1), a2.hypot(b2));
    let hue = |a: f64, b: f64| if a == 0.0 && b == 0.0 { 0.0 } else { b.atan2(a).to_degrees().rem_euclid(360.0) };
    let (h1, h2) = (hue(a1, b1), hue(a2, b2));
    let gray = c1 * c2 == 0.0;
    let turn = match h2 - h1 {
        _ if gray => 0.0,
        d if d > 180.0 => d - 360.0,
        d if d < -180.0 => d + 360.0,
        d => d,
    };
    let (dl, dc) = (l2 - l1, c2 - c1);
    let dh = 2.0 * (c1 * c2).sqrt() * (turn / 2.0).to_radians().sin();
    let (l, c) = ((l1 + l2) / 2.0, (c1 + c2) / 2.0);
    let h = match h1 + h2 {
        sum if gray => sum,
        sum if (h1 - h2).abs() <= 180.0 => sum / 2.0,
        sum if sum < 360.0 => (sum + 360.0) / 2.0,
        sum => (sum - 360.0) / 2.0,
    };
    let cos = |degrees: f64| degrees.to_radians().cos();
    let t = 1.0 - 0.17 * cos(h - 30.0) + 0.24 * cos(2.0 * h) + 0.32 * cos(3.0 * h + 6.0) - 0.20 * cos(4.0 * h - 63.0);
    let around = 30.0 * (-((h - 275.0) / 25.0).powi(2)).exp();
    let sl = 1.0 + 0.015 * (l - 50.0).powi(2) / (20.0 + (l - 50.0).powi(2)).sqrt();
    let (sc, sh) = (1.0 + 0.045 * c, 1.0 + 0.015 * c * t);
    let rt = -(2.0 * around).to_radians().sin() * 2.0 * seventh(c);
    ((dl / sl).powi(2) + (dc / sc).powi(2) + (dh / sh).powi(2) + rt * (dc / sc) * (dh / sh)).sqrt()
}

/// Cone responses from linear RGB, and back: F. Viénot, H. Brettel, J. D. Mollon, "Digital video colourmaps for checking the
/// legibility of displays by dichromats", Color Research & Application 24 (1999).
const CONES: Matrix = [[17.8824, 43.5161, 4.119_35], [3.455_65, 27.1554, 3.867_14], [0.029_956_6, 0.184_309, 1.467_09]];
const BACK: Matrix = [
    [0.080_944_447_9, -0.130_504_409, 0.116_721_066],
    [-0.010_248_533_5, 0.054_019_326_6, -0.113_614_708],
    [-0.000_365_296_938, -0.004_121_614_69, 0.693_511_405],
];

/// Severity 1.0 on linear RGB: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A physiologically-based model for simulation
/// of color vision deficiency", IEEE TVCG 15 (2009).
const PROTANOPIA: Matrix =
    [[0.152_286, 1.052_583, -0.204_868], [0.114_503, 0.786_281, 0.099_216], [-0.003_882, -0.048_116, 1.051_998]];
const DEUTERANOPIA: Matrix =
    [[0.367_322, 0.860_646, -0.227_968], [0.280_085, 0.672_501, 0.047_413], [-0.011_820, 0.042_940, 0.968_881]];

const READERS: [&str; 6] =
    ["normal", "protanopia (1999)", "deuteranopia (1999)", "protanopia (2009)", "deuteranopia (2009)", "grey"];

/// What each of [`READERS`] sees, in CIELAB.
fn seen(color: Rgb) -> [Vector; 6] {
    let rgb = color.map(linear);
    let [l, m, s] = times(&CONES, rgb);
    let inside = |v: Vector| v.map(|value| value.clamp(0.0, 1.0));
    [
        rgb,
        times(&BACK, [2.023_44 * m - 2.525_81 * s, m, s]),
        times(&BACK, [l, 0.494_207 * l + 1.248_27 * s, s]),
        times(&PROTANOPIA, rgb),
        times(&DEUTERANOPIA, rgb),
        [luminance(color); 3],
    ]
    .map(|v| lab(inside(v)))
}

/// The least difference over readers, and whose it is.
fn least(a: Rgb, b: Rgb) -> (f64, &'static str) {
    let (a, b) = (seen(a), seen(b));
    let each = (0..READERS.len()).map(|i| (delta_e(a[i], b[i]), READERS[i]));
    each.min_by(|x, y| x.0.total_cmp(&y.0)).unwrap()
}

/// Whether two fills differ by their hatch, or by 20 for every reader: in their grounds, or where both are hatched in their lines.
fn apart(a: &Tone, b: &Tone) -> bool {
    a.hatch != b.hatch || least(a.color, b.color).0 >= 20.0 || !a.hatch.is_empty() && least(a.line, b.line).0 >= 20.0
}

const PALETTES: [Palette; 3] = [Palette::Default, Palette::ColourBlind, Palette::Grey];

/// Kinds of op, idle ground and causes, by name.
fn fills(palette: Palette) -> Vec<(String, Tone)> {
    let ops = ops(palette).into_iter().map(|(name, [first, ..])| (name, first));
    // Gaps are lines on nearly white ground.
    let gap = |line: Rgb, hatch: &str| {
        let ground = line.map(|c| (f64::from(c) * 0.03 + 255.0 * 0.97).round() as u8);
        Tone { color: ground, text: [0x11; 3], ground, line, hatch: hatch.to_string() }
    };
    let data = data(palette);
    let causes = data["causes"].as_array().unwrap().iter();
    let causes =
        causes.map(|of| (format!("idle: {}", of["name"]), gap(rgb(&of["color"]), of["hatch"].as_str().unwrap())));
    let idle = Tone { line: [0xc3, 0xc8, 0xd0], ..gap([0xff; 3], "/") };
    ops.chain([("idle".to_string(), idle)]).chain(causes).collect()
}

/// Pairs of CIELAB colours and their difference, from table 1 of Sharma, Wu and Dalal (2005): those around hue's turn, near
/// grey, and across the circle, where implementations go wrong.
#[test]
fn the_difference_is_that_of_the_published_pairs() {
    let pairs = [
        ([50.0, 2.6772, -79.7751], [50.0, 0.0, -82.7485], 2.0425),
        ([50.0, 3.1571, -77.2803], [50.0, 0.0, -82.7485], 2.8615),
        ([50.0, 2.8361, -74.0200], [50.0, 0.0, -82.7485], 3.4412),
        ([50.0, -1.3802, -84.2814], [50.0, 0.0, -82.7485], 1.0000),
        ([50.0, -1.1848, -84.8006], [50.0, 0.0, -82.7485], 1.0000),
        ([50.0, -0.9009, -85.5211], [50.0, 0.0, -82.7485], 1.0000),
        ([50.0, 0.0, 0.0], [50.0, -1.0, 2.0], 2.3669),
        ([50.0, -1.0, 2.0], [50.0, 0.0, 0.0], 2.3669),
        ([50.0, 2.4900, -0.0010], [50.0, -2.4900, 0.0009], 7.1792),
        ([50.0, 2.4900, -0.0010], [50.0, -2.4900, 0.0010], 7.1792),
        ([50.0, 2.4900, -0.0010], [50.0, -2.4900, 0.0011], 7.2195),
        ([50.0, 2.4900, -0.0010], [50.0, -2.4900, 0.0012], 7.2195),
        ([50.0, -0.0010, 2.4900], [50.0, 0.0009, -2.4900], 4.8045),
        ([50.0, -0.0010, 2.4900], [50.0, 0.0010, -2.4900], 4.8045),
        ([50.0, -0.0010, 2.4900], [50.0, 0.0011, -2.4900], 4.7461),
        ([50.0, 2.5, 0.0], [50.0, 0.0, -2.5], 4.3065),
        ([50.0, 2.5, 0.0], [73.0, 25.0, -18.0], 27.1492),
        ([50.0, 2.5, 0.0], [61.0, -5.0, 29.0], 22.8977),
        ([50.0, 2.5, 0.0], [56.0, -27.0, -3.0], 31.9030),
        ([50.0, 2.5, 0.0], [58.0, 24.0, 15.0], 19.4535),
        ([50.0, 2.5, 0.0], [50.0, 3.1736, 0.5854], 1.0000),
        ([50.0, 2.5, 0.0], [50.0, 3.2972, 0.0], 1.0000),
        ([50.0, 2.5, 0.0], [50.0, 1.8634, 0.5757], 1.0000),
        ([50.0, 2.5, 0.0], [50.0, 3.2592, 0.3350], 1.0000),
        ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
        ([63.0109, -31.0961, -5.8663], [62.8187, -29.7946, -4.0864], 1.2630),
        ([61.2901, 3.7196, -5.3901], [61.4292, 2.2480, -4.9620], 1.8731),
        ([35.0831, -44.1164, 3.7933], [35.0232, -40.0716, 1.5901], 1.8645),
        ([22.7233, 20.0904, -46.6940], [23.0331, 14.9730, -42.5619], 2.0373),
        ([36.4612, 47.8580, 18.3852], [36.2715, 50.5065, 21.2231], 1.4146),
        ([90.8027, -2.0831, 1.4410], [91.1528, -1.6435, 0.0447], 1.4441),
        ([90.9257, -0.5406, -0.9208], [88.6381, -0.8985, -0.7239], 1.5381),
        ([6.7747, -0.2908, -2.4247], [5.8714, -0.0985, -2.2286], 0.6377),
        ([2.0776, 0.0795, -1.1350], [0.9033, -0.0636, -0.5514], 0.9082),
    ];
    for (a, b, wanted) in pairs {
        assert!((delta_e(a, b) - wanted).abs() < 5e-5, "{a:?} {b:?}: {} for {wanted}", delta_e(a, b));
    }
}

/// Who lacks a cone still sees white and blue as they are (the models' anchors), and red and green as one hue.
#[test]
fn readers_are_simulated() {
    for (i, back) in
        BACK.map(|row| std::array::from_fn(|i| (0..3).map(|j| row[j] * CONES[j][i]).sum())).iter().enumerate()
    {
        let one: Vector = *back;
        assert!((0..3).all(|j| (one[j] - f64::from(u8::from(i == j))).abs() < 1e-4), "{one:?}");
    }
    let [white, gray] = [[255; 3], [128; 3]].map(seen);
    for reader in 0..READERS.len() {
        assert!(delta_e(white[reader], white[0]) < 0.1 && delta_e(gray[reader], gray[0]) < 0.1, "{}", READERS[reader]);
    }
    // Who lacks a cone sees colours that differ in its response alone as one.
    let rgb = |cones: Vector| {
        times(&BACK, cones).map(|v| {
            (255.0 * if v <= 0.003_130_8 { 12.92 * v } else { 1.055 * v.powf(1.0 / 2.4) - 0.055 }).round() as u8
        })
    };
    for (cone, reader) in [(0, 1), (1, 2)] {
        let one = times(&CONES, [0.3; 3]);
        let mut other = one;
        other[cone] *= 1.1;
        let (a, b) = (seen(rgb(one)), seen(rgb(other)));
        assert!(
            delta_e(a[0], b[0]) > 10.0 && delta_e(a[reader], b[reader]) < 1.0,
            "{}: {} {}",
            READERS[reader],
            delta_e(a[0], b[0]),
            delta_e(a[reader], b[reader])
        );
    }
}

#[test]
fn kinds_idle_time_and_causes_are_told_apart_by_everybody() {
    for palette in PALETTES {
        let fills = fills(palette);
        for (i, (a, one)) in fills.iter().enumerate() {
            for (b, other) in &fills[..i] {
                let (found, reader) = least(one.color, other.color);
                assert!(apart(one, other), "{palette:?}: {a} and {b}: {found:.1}, {reader}");
            }
        }
    }
}

/// Chunks have shades. Of the default palette's, F against B and every kind against W stay apart for every reader who sees
/// colours; of the other two palettes' all kinds, in print without colours too.
#[test]
fn kinds_are_told_apart_in_all_shades_too() {
    for palette in PALETTES {
        let ops = ops(palette);
        for (i, (a, shades)) in ops.iter().enumerate() {
            for (b, others) in &ops[..i] {
                for (x, y) in shades.iter().flat_map(|x| others.iter().map(move |y| (x, y))) {
                    let (one, other) = (seen(x.color), seen(y.color));
                    let coloured = (0..5).map(|i| delta_e(one[i], other[i])).fold(f64::INFINITY, f64::min);
                    let holds = match palette {
                        Palette::Default => x.hatch != y.hatch || coloured >= 13.0,
                        _ => apart(x, y),
                    };
                    assert!(holds, "{palette:?}: {a} and {b}: {coloured:.1}");
                }
            }
        }
    }
}

/// Two chunks of a device have the first shade and the third, four have all.
#[test]
fn chunks_are_told_apart_by_everybody() {
    for palette in PALETTES {
        for (name, shades) in ops(palette).into_iter().take(4) {
            for (one, other, wanted) in [(0, 2, 9.0), (0, 3, 11.0), (0, 1, 3.5), (1, 2, 3.5), (2, 3, 2.5)] {
                let [one, other] = [one, other].map(|shade: usize| shades[shade].color);
                let (found, reader) = least(one, other);
                assert!(found >= wanted, "{palette:?} {name}: {one:?} and {other:?}: {found:.1}, {reader}");
            }
        }
    }
}

/// The background of pictures and pages, light and dark.
const BACKGROUNDS: [Rgb; 2] = [[0xff; 3], [0x0d, 0x11, 0x17]];

/// In every chunk of eight, in print without colours too.
#[test]
fn ops_are_told_from_idle_time_on_light_and_dark_ground() {
    for palette in PALETTES {
        for (name, shades) in ops(palette).into_iter().take(5) {
            for (shade, background) in (0..8).flat_map(|shade| BACKGROUNDS.map(|background| (shade, background))) {
                let (found, reader) = least(shades[shade].color, background);
                assert!(found >= 9.5, "{palette:?} {name} {shade} on {background:?}: {found:.2}, {reader}");
            }
        }
    }
}

#[test]
fn neighbours_among_eight_chunks_are_told_apart_by_everybody() {
    for palette in PALETTES {
        for (name, shades) in ops(palette).into_iter().take(4) {
            let colors: std::collections::BTreeSet<Rgb> = shades.iter().map(|tone| tone.color).collect();
            assert_eq!(colors.len(), 8, "{palette:?} {name}");
            for chunk in 0..7 {
                let [one, other] = [chunk, chunk + 1].map(|chunk: usize| shades[OF_EIGHT[chunk]].color);
                let (found, reader) = least(one, other);
                assert!(found >= 4.5, "{palette:?} {name}: chunks {chunk} and {}: {found:.2}, {reader}", chunk + 1);
            }
        }
    }
}

/// By their colours, for every reader who sees any: boxes may be too narrow for a hatch.
#[test]
fn recomputation_is_told_from_forwards_of_every_chunk() {
    for palette in PALETTES {
        let ops = ops(palette);
        let [forward, recomputation] = ["F ", "R "].map(|kind| ops.iter().find(|op| op.0.starts_with(kind)).unwrap());
        for (x, y) in forward.1.iter().flat_map(|x| recomputation.1.iter().map(move |y| (x, y))) {
            let (one, other) = (seen(x.color), seen(y.color));
            let found = (0..5).map(|i| delta_e(one[i], other[i])).fold(f64::INFINITY, f64::min);
            assert!(found >= 10.0, "{palette:?}: {:?} and {:?}: {found:.2}", x.color, y.color);
        }
    }
}

/// WCAG 2.2, success criterion 1.4.3.
#[test]
fn texts_on_boxes_are_legible() {
    for palette in PALETTES {
        for (name, shades) in classes(palette) {
            for (shade, tone) in shades.iter().enumerate() {
                let found = contrast(tone.text, tone.ground).min(contrast(tone.text, tone.color));
                assert!(found >= 4.5, "{palette:?} {name} {shade}: {found:.2}");
                let hatched = !tone.hatch.is_empty();
                assert!(!hatched || contrast(tone.text, tone.line) >= 4.5, "{palette:?} {name} {shade}");
                assert!(!hatched || least(tone.ground, tone.line).0 >= 12.0, "{palette:?} {name} {shade}: lines");
            }
        }
    }
}
