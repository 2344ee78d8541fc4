//! Calibrations against a second computation, on published groups, and what must not change them.

use pipesim_answer::question::Question;
use pipesim_answer::resolve::Files;
use pipesim_cost::analytic::StepTime;
use pipesim_verdict::calibration::{
    Doubt, LeftOutError, MeasuredLayout, Prior, StepCalibration, is_log, logged_run, measured_runs,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The repository; this test belongs to the crate and to the program, whose folders differ.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("tests/verdict").is_dir()).unwrap()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

const PARTS: [&str; 7] = [
    "compute",
    "tensor_parallel_exposed",
    "expert_parallel_exposed",
    "pipeline_bubble",
    "data_parallel_exposed",
    "optimizer",
    "other",
];

/// A published layout: the shares of its parts, ln(measured / predicted) by a fit without its group, and its weight.
#[derive(Clone, Debug)]
struct Layout {
    shares: [f64; 7],
    log: f64,
    weight: f64,
}

/// The layouts of each group; rows with the same predicted parts are one layout.
fn groups(folder: &str) -> Vec<Vec<Layout>> {
    let json = |name: &str| serde_json::from_str::<Value>(&text(&format!("{folder}/{name}"))).unwrap();
    let left_out = json("left_out.json");
    let ratios: BTreeMap<&str, f64> = left_out
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["id"].as_str().unwrap(), row["group"].as_f64().unwrap()))
        .collect();
    let mut found: BTreeMap<String, Vec<([f64; 7], Layout)>> = BTreeMap::new();
    for row in json("published.json")["rows"].as_array().unwrap() {
        let Some(ratio) = ratios.get(row["id"].as_str().unwrap()) else { continue };
        let parts = PARTS.map(|part| row["time_s"][part].as_f64().unwrap());
        let (sum, weight) = (parts.iter().sum::<f64>(), row["weight"].as_f64().unwrap());
        let group = found.entry(row["group"].as_str().unwrap().to_string()).or_default();
        match group.iter_mut().find(|(known, _)| *known == parts) {
            Some((_, one)) => {
                one.log = (one.log * one.weight - ratio.ln() * weight) / (one.weight + weight);
                one.weight += weight;
            }
            None => group.push((parts, Layout { shares: parts.map(|part| part / sum), log: -ratio.ln(), weight })),
        }
    }
    let only = |group: Vec<([f64; 7], Layout)>| group.into_iter().map(|(_, layout)| layout).collect::<Vec<_>>();
    found.into_values().map(only).filter(|group| group.len() > 1).collect()
}

fn step([compute, tensor, expert, bubble, data, optimizer, other]: [f64; 7]) -> StepTime {
    StepTime {
        compute,
        tensor_parallel_exposed: tensor,
        expert_parallel_exposed: expert,
        imbalance: 0.0,
        pipeline_bubble: bubble,
        data_parallel_exposed: data,
        optimizer,
        other,
    }
}

fn measured(layout: &Layout) -> MeasuredLayout {
    MeasuredLayout { predicted: step(layout.shares), measured_s: layout.log.exp(), point: None }
}

fn likeness(a: &Layout, b: &Layout) -> f64 {
    let distance: f64 = a.shares.iter().zip(&b.shares).map(|(a, b)| (a - b).abs()).sum();
    (-Prior::published().fading * distance).exp()
}

/// One measured layout scales another by its own ratio to the power of their likeness, but for its noise. The errors by this formula are
/// those that the program states (by priors that were chosen without the group), and no worse on average than without calibration.
#[test]
fn one_measured_layout_helps_on_average() {
    for (folder, is_mixture) in [("reports/published", false), ("reports/published-mixtures", true)] {
        let (mut before, mut after, mut all) = (0.0, 0.0, 0.0);
        for group in groups(folder) {
            let weight: f64 = group.iter().map(|layout| layout.weight).sum();
            let own = |skipped: usize| weight - group[skipped].weight;
            let tested: f64 = (0..group.len()).map(own).sum();
            all += weight;
            for (chosen, one) in group.iter().enumerate() {
                let calibration = StepCalibration::fit(&[measured(one)]);
                for (_, other) in group.iter().enumerate().filter(|(number, _)| *number != chosen) {
                    let log = one.log * likeness(one, other) / (1.0 + Prior::published().noise);
                    let factor = calibration.correction(&step(other.shares)).factor;
                    assert!((factor.ln() - log).abs() < 1e-9, "{factor} {}", log.exp());
                    let share = other.weight * weight / tested;
                    before += share * ((-other.log).exp() - 1.0).abs();
                    after += share * ((log - other.log).exp() - 1.0).abs();
                }
            }
        }
        let stated = LeftOutError::published(1, is_mixture).unwrap();
        println!("{folder}: {before} {after} {all} {stated:?}");
        assert!((before / all - stated.mean_before).abs() < 1e-3, "{} {stated:?}", before / all);
        assert!((after / all - stated.mean).abs() < 4e-3, "{} {stated:?}", after / all);
        assert!(after < before && stated.mean < stated.mean_before);
    }
}

/// With more measured layouts the stated errors fall, and the intervals keep their coverage.
#[test]
fn stated_errors_fall() {
    for is_mixture in [false, true] {
        let of = |measured| LeftOutError::published(measured, is_mixture).unwrap();
        for measured in [1, 2, 4] {
            let stated = of(measured);
            assert_eq!(stated.measured, measured);
            assert!(stated.mean < stated.mean_before && stated.median < stated.median_before, "{stated:?}");
            assert!(stated.coverage > 0.86, "{stated:?}");
        }
        // with other numbers of layouts: those of the next smaller one
        assert_eq!(of(3), of(2));
        assert_eq!(of(100).measured, 8);
    }
    assert_eq!(LeftOutError::published(0, false), None);
}

/// Determinant of a 3 x 3 matrix.
fn determinant([a, b, c]: [[f64; 3]; 3]) -> f64 {
    a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) + a[2] * (b[0] * c[1] - b[1] * c[0])
}

/// Mean and standard deviation of the last of three Gaussians with this covariance, given the two others, by sums over a grid of the
/// joint density.
fn conditional(covariance: [[f64; 3]; 3], known: [f64; 2]) -> [f64; 2] {
    // the inverse by cofactors
    let cofactor = |row: usize, column: usize| {
        let mut changed = covariance;
        (0..3).for_each(|at| changed[row][at] = f64::from(u8::from(at == column)));
        determinant(changed) / determinant(covariance)
    };
    let inverse = [0, 1, 2].map(|row| [0, 1, 2].map(|column| cofactor(row, column)));
    let (mut sums, steps) = ([0.0; 3], 400_000);
    for step in 0..steps {
        let value = -10.0 + 20.0 * f64::from(step) / f64::from(steps);
        let all = [known[0], known[1], value];
        let form: f64 = (0..3).map(|i| (0..3).map(|j| all[i] * inverse[i][j] * all[j]).sum::<f64>()).sum();
        let density = (-0.5 * form).exp();
        sums = [sums[0] + density, sums[1] + density * value, sums[2] + density * value * value];
    }
    let mean = sums[1] / sums[0];
    [mean, (sums[2] / sums[0] - mean * mean).sqrt()]
}

/// Two measured layouts: the correction is the conditional mean, and the interval narrows with the conditional deviation.
#[test]
fn two_measured_layouts_agree_with_integration() {
    let prior = Prior { noise: 0.05, narrowing: 1.0, ..Prior::published() };
    let groups = groups("reports/published");
    for group in groups.iter().filter(|group| group.len() > 2).take(6) {
        let [a, b, c] = [&group[0], &group[1], &group[2]];
        let entry = |x: &Layout, y: &Layout| likeness(x, y) + if x.shares == y.shares { 0.05 } else { 0.0 };
        let covariance = [a, b, c].map(|x| [a, b, c].map(|y| entry(x, y)));
        let [mean, deviation] = conditional(covariance, [a.log, b.log]);
        let found = StepCalibration::with_prior(prior, &[measured(a), measured(b)]).correction(&step(c.shares));
        assert!((found.factor.ln() - mean).abs() < 1e-6, "{found:?} {mean}");
        assert!((found.narrowed - deviation / 1.05_f64.sqrt()).abs() < 1e-4, "{found:?} {deviation}");
    }
}

/// What a calibration of these layouts does to the first layout of another group.
fn factor(runs: &[MeasuredLayout], of: &Layout) -> f64 {
    StepCalibration::fit(runs).correction(&step(of.shares)).factor
}

#[test]
fn no_runs_change_nothing() {
    for layout in groups("reports/published").concat() {
        let found = StepCalibration::fit(&[]).correction(&step(layout.shares));
        assert_eq!([found.factor, found.narrowed, found.likeness], [1.0, 1.0, 0.0]);
    }
}

#[test]
fn order_and_repetition_do_not_matter() {
    for group in groups("reports/published").iter().filter(|group| group.len() > 4) {
        let mut runs: Vec<MeasuredLayout> = group[1..].iter().map(measured).collect();
        let first = factor(&runs, &group[0]);
        runs.reverse();
        assert_eq!(first.to_bits(), factor(&runs, &group[0]).to_bits());
        // a run that is given twice is still one layout
        runs.extend(runs.clone());
        assert!((first - factor(&runs, &group[0])).abs() < 1e-12);
        assert_eq!(StepCalibration::fit(&runs).layouts(), group.len() - 1);
        // two runs of one layout count as their mean
        let one = measured(&group[1]);
        let scaled = |by: f64| MeasuredLayout { measured_s: one.measured_s * by, ..one.clone() };
        let twice = factor(&[scaled(1.1), scaled(1.0 / 1.1)], &group[0]);
        assert!((twice - factor(&[one], &group[0])).abs() < 1e-12);
    }
}

/// Longer measured times correct all predictions upwards, the more the more layouts are measured, towards the factor itself.
#[test]
fn twice_the_time_of_many_layouts_is_nearly_twice_the_prediction() {
    let twice = |layout: &Layout| MeasuredLayout { measured_s: 2.0, ..measured(layout) };
    for group in groups("reports/published").iter().filter(|group| group.len() > 8) {
        let (one, others) = (&group[0], &group[1..]);
        let runs: Vec<MeasuredLayout> = others.iter().map(twice).collect();
        let [few, many] = [&runs[..1], &runs[..]].map(|runs| factor(runs, one));
        assert!(few > 1.0 && many > 1.0 && many < 2.1, "{few} {many}");
        assert!((factor(&[twice(one)], one) - 2.0).abs() < 0.01);
    }
    let mean = |count: usize| {
        let groups = groups("reports/published");
        let large: Vec<&Vec<Layout>> = groups.iter().filter(|group| group.len() > 8).collect();
        let of = |group: &Vec<Layout>| factor(&group[1..=count].iter().map(twice).collect::<Vec<_>>(), &group[0]);
        large.iter().map(|group| of(group)).sum::<f64>() / large.len() as f64
    };
    let means = [1, 2, 4, 8].map(mean);
    assert!(means.is_sorted() && means[3] > 1.7, "{means:?}");
}

/// Times that are no times say nothing.
#[test]
fn runs_without_a_time_are_ignored() {
    let layout = &groups("reports/published")[0][0];
    for measured_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(StepCalibration::fit(&[MeasuredLayout { measured_s, ..measured(layout) }]).layouts(), 0);
    }
}

fn asked() -> Question {
    let text = "version = 1\nmodel = \"llama-3-8b\"\nhardware = \"h100-sxm\"\nschedule = \"1f1b\"\ndp = 8\nbatch = 128\nseq = 8192\n\
                precision = \"fp8\"\nzero = 1\n";
    Question::from_toml(text).unwrap()
}

/// Cells are settings by their names on the command line; the others are as in the question.
#[test]
fn runs_are_read() {
    let csv = "\u{feff}# two runs\n--tp, dp, pp,micro_batch_size,recompute,zero,measured\r\n\r\n2,4,1,1,none,,9.5\n1,4,2,1,\"mlp,layernorm\",0,10200ms\n";
    let runs = measured_runs(csv, &asked(), &Files).unwrap();
    let [first, second] = [0, 1].map(|run| runs[run].measured_s);
    assert!(first == 9.5 && (second - 10.2).abs() < 1e-12, "{first} {second}");
    let alone = |more: &str| {
        let key = |line: &str| line.split(" =").next().unwrap().to_string();
        let keep = |line: &&str| !more.lines().any(|other| key(other) == key(line));
        let text = asked().to_toml().unwrap().lines().filter(keep).map(|line| format!("{line}\n")).collect::<String>();
        let question = Question::from_toml(&(text + more)).unwrap();
        pipesim_answer::question::answer(&question, &Files).unwrap().predictions[0].estimate.as_ref().unwrap().time_s
    };
    assert_eq!(runs[0].predicted, alone("tp = 2\ndp = 4\nmicro-batch-size = 1\n"));
    assert_eq!(
        runs[1].predicted,
        alone("dp = 4\nstages = 2\nrecompute = \"mlp,layernorm\"\nmicro-batch-size = 1\nzero = 0\n")
    );
}

/// Faults are named with line and column, and with what to do.
#[test]
fn faults_of_files_have_their_place() {
    let wrong = [
        ("", "expected a line with names of columns"),
        ("tp,dp\n1,8\n", "line 1: expected a column 'measured'"),
        ("tp,tp,measured\n1,1,3\n", "line 1: expected each column once"),
        ("a b,measured\n1,3\n", "line 1: expected each column once, called as an option, found 'a b'"),
        ("tp,measured\n", "expected 1 to 500 runs, found 0"),
        ("tp,measured\n1\n", "line 2: expected 2 cells, found 1"),
        (
            "dp,measured\n8,fast\n",
            "line 2: column 'measured': expected seconds per iteration, or a speed with its unit, found 'fast'",
        ),
        (
            "dp,measured\n8,\n",
            "line 2: column 'measured': expected seconds per iteration, or a speed with its unit, found nothing",
        ),
        (
            "dp,measured\n8,-3\n",
            "line 2: column 'measured': expected seconds per iteration, or a speed with its unit, found '-3'",
        ),
        ("dp,measured\n\n8,3\nx,3\n", "line 4: column 'dp'"),
        ("dqp,measured\n8,3\n", "line 2: column 'dqp': no setting is called 'dqp'"),
        ("precision,measured\nint2,3\n", "line 2: column 'precision'"),
        ("dp,measured\n\"8,3\n", "line 2: expected a closing quote"),
        ("dp,measured\n\"4,8\",3\n", "line 2: expected one layout of a model on hardware"),
        ("schedule,measured\n\"1f1b,gpipe\",3\n", "line 2: "),
        (
            "model,measured\nllama-3-70b,3\n",
            "line 2: expected runs of the model 'llama-3-8b' as in the command, found 'llama-3-70b'",
        ),
        (
            "hardware,measured\nb200,3\n",
            "line 2: expected runs of the hardware 'h100-sxm' as in the command, found 'b200'",
        ),
        ("dp,measured\n8,9000\n", "line 2: expected a time within a factor of 10 of the prediction"),
        ("dp,measured\n8,430 TFLOP/s/gpu\n", "line 2: column 'measured': expected how FLOPs are counted"),
        ("stages,schedule,measured\n2,interleaved-1f2b,3\n", "line 2: "),
    ];
    for (csv, message) in wrong {
        let found = measured_runs(csv, &asked(), &Files).unwrap_err().to_string();
        assert!(found.contains(message), "{csv:?}: {found}");
    }
}

/// A log is a run of its own layout: its median step, and what `predict` says of it. A speed gives the time that follows from the tokens.
#[test]
fn logs_and_speeds_are_runs() {
    let log = format!("{}/examples/job/train.log", root().display());
    assert!(is_log(&log) && !is_log("runs.csv"));
    let asked = Question { model: Some("llama-3.1-8b".to_string()), hardware: Some("h100-sxm".to_string()), ..asked() };
    let run = logged_run(&log, &asked, &Files).unwrap();
    // the median of the lines without the first two and those after a checkpoint, as in the book
    assert!((run.measured_s - 11.92).abs() < 0.01, "{run:?}");
    let other = logged_run(&log, &Question { model: Some("llama-3-70b".to_string()), ..asked }, &Files).unwrap_err();
    assert!(other.to_string().contains("expected runs of the model 'llama-3-70b' as in the command"), "{other}");
    // 128 sequences of 8192 tokens on 8 GPUs
    let runs = measured_runs("measured\n13107.2 tokens/s/gpu\n104857.6 tokens/s\n", &self::asked(), &Files).unwrap();
    assert!(runs.iter().all(|run| (run.measured_s - 10.0).abs() < 1e-9), "{runs:?}");
}

/// The book's table has the numbers of the file.
#[test]
fn the_book_states_the_errors_of_the_file() {
    let page = text("docs/src/calibration.md");
    for (name, is_mixture) in [("dense", false), ("mixture", true)] {
        for measured in [1, 2, 4, 8] {
            let stated = LeftOutError::published(measured, is_mixture).unwrap();
            let head = format!("| {name} | {measured} | {} |", stated.groups);
            let row = page.lines().find(|line| line.starts_with(&head)).unwrap_or_else(|| panic!("{head}"));
            let cells: Vec<f64> =
                row.split('|').filter_map(|cell| cell.trim().strip_suffix(" %")?.parse().ok()).collect();
            let LeftOutError { mean_before, mean, median_before, median, coverage, worse, most_worse, .. } = stated;
            let expected = [mean_before, mean, median_before, median, coverage, worse, most_worse];
            for ((at, expected), rounding) in
                [0, 2, 3, 5, 6, 7, 8].iter().zip(expected).zip([0.051, 0.051, 0.051, 0.051, 0.51, 0.51, 0.051])
            {
                assert!((cells[*at] - 100.0 * expected).abs() < rounding, "{row}: {expected}");
            }
        }
    }
}

/// What measuring one of two plans saves is known in closed form (Clark, Operations Research 9, 1961): with logarithms d apart and a standard
/// deviation s of the measured one, min(0, d + s z) is lower by s φ(d / s) - d (1 - Φ(d / s)). Of two plans whose errors are the same, only
/// one is measured.
#[test]
fn the_first_plans_to_measure_are_those_that_tell_most() {
    let normal = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let above = |x: f64| {
        let steps = 20_000;
        let width = 8.0 / f64::from(steps);
        (0..steps).map(|step| normal(x + (f64::from(step) + 0.5) * width) * width).sum::<f64>()
    };
    for (distance, deviation) in [(0.0, 0.1), (0.05, 0.1), (0.1, 0.05)] {
        let square = deviation * deviation;
        let doubt = Doubt { means: vec![0.0, distance], covariance: vec![vec![1e-9, 0.0], vec![0.0, square]] };
        let first = doubt.first(1);
        let saved = deviation * normal(distance / deviation) - distance * above(distance / deviation);
        let own = first.first().map_or(0.0, |one| -(1.0 - one.expected_saving).ln());
        assert!((own - saved).abs() < 0.03 * deviation, "{distance}, {deviation}: {own}, not {saved}");
        assert!(first.iter().all(|one| one.plan == 2));
    }
    // the second plan's error is the first one's; the third plan's is its own
    let covariance = vec![vec![0.01, 0.01, 0.0], vec![0.01, 0.01, 0.0], vec![0.0, 0.0, 0.01]];
    let first = Doubt { means: vec![0.0, 0.001, 0.002], covariance }.first(3);
    assert!(first.len() == 2 && first.iter().any(|one| one.plan == 3), "{first:?}");
}
