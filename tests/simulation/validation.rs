//! The tool that predicts published steps: its table, its errors and its regret.

use pipesim::plans::Preference;
use pipesim_validation::regret::{Choice, Layout, Problem, Summary};
use pipesim_validation::{Errors, read};

#[test]
fn unreadable_rows_are_reported_with_their_field() {
    let good = serde_json::json!({
        "id": "a-1", "family": "f", "group": "g",
        "model": {"name": "m", "arch": "gpt", "layers": 2, "hidden": 64, "ffn": 256, "heads": 2, "kv_heads": 2, "vocab": 257},
        "seq": 64, "gpu": "h100-sxm", "gpus": 1, "gpus_per_node": 8, "network_gbps_per_gpu": 400, "tp": 1, "pp": 1, "cp": 1, "dp": 1,
        "chunks": 1, "schedule": "none", "micro_batch_size": 1, "batch": 1, "precision": "bf16", "stack": "pipesim",
        "iteration_s": 1.5
    });
    assert_eq!(
        read(&serde_json::json!([good]).to_string()).map(|(rows, faults)| (rows.len(), faults)).unwrap(),
        (1, vec![])
    );
    for (field, value, fault) in [
        ("iteration_s", "null", "iteration_s: invalid type: null, expected f64"),
        ("iteration_s", "0", "iteration_s: expected a positive number, found 0"),
        ("iteration_s", "\"3\"", "iteration_s: invalid type: string \"3\", expected f64"),
        ("tp", "-1", "tp: invalid number"),
        ("gpu", "7", "gpu: invalid type: number, expected a string"),
        ("model", "null", "model: invalid type: null, expected struct Model"),
        ("model/heads", "null", "model.heads: invalid type: null, expected usize"),
        ("model/ffn", "", "model.ffn: expected a positive number, found 0"),
        ("model/arch", "", "model: missing field `arch`"),
        ("gpus", "", "missing field `gpus`"),
    ] {
        let mut bad = good.clone();
        let (object, name) = field.rsplit_once('/').unwrap_or(("", field));
        let object = if object.is_empty() { &mut bad } else { &mut bad[object] };
        match value {
            "" => drop(object.as_object_mut().unwrap().remove(name)),
            value => object[name] = serde_json::from_str(value).unwrap(),
        }
        bad["id"] = "b-2".into();
        let (rows, faults) = read(&serde_json::json!([good, bad]).to_string()).unwrap();
        assert_eq!((rows.len(), faults), (1, vec![format!("row 2 (b-2): {fault}")]), "{field}");
    }
    assert!(read("{}").is_err());
}

#[test]
fn rows_count_by_their_weight() {
    let errors = Errors::of(&[(0.1, 1.0), (-0.3, 1.0), (0.2, 2.0)]);
    assert_eq!((errors.rows, errors.weight, errors.median), (3, 4.0, 0.2));
    assert!((errors.mean - 0.2).abs() < 1e-12 && (errors.bias - 0.05).abs() < 1e-12);
    assert_eq!(Errors::of(&[]), Errors::default());
}

fn layout(predicted: f64, fits: bool, measured: Option<f64>, preference: Preference) -> Layout {
    Layout {
        predicted_s: Some(predicted),
        fits: Some(fits),
        measured_s: measured,
        ran_out: measured.is_none(),
        preference,
    }
}

#[test]
fn a_choice_is_measured_against_the_best_layout() {
    let mut problem = Problem {
        name: "two".to_string(),
        layouts: vec![
            layout(1.0, true, Some(11.0), Preference::new(1, false, 2, 1)),
            layout(2.0, true, Some(10.0), Preference::new(1, false, 4, 1)),
            layout(0.5, false, None, Preference::new(1, false, 1, 1)),
        ],
    };
    let near = |choice: Choice, regret: f64| matches!(choice, Choice::Regret(found) if (found - regret).abs() < 1e-12);
    assert!(near(problem.chosen(), 0.1) && near(problem.told(), 0.1) && near(problem.rule(), 0.1));
    // within the resolution of predictions the simpler layout is chosen
    problem.layouts[0].predicted_s = Some(2.05);
    assert!(near(problem.told(), 0.1));
    problem.layouts[0].predicted_s = Some(2.2);
    assert!(near(problem.told(), 0.0));
    problem.layouts[2].fits = Some(true);
    assert_eq!(problem.chosen(), Choice::OutOfMemory);
    let all = [problem.chosen(), problem.told(), Choice::Nothing];
    let summary = Summary::of(&all);
    assert_eq!((summary.problems, summary.out_of_memory, summary.nothing), (3, 1, 1));
    assert!((summary.good - 1.0 / 3.0).abs() < 1e-12);
}
