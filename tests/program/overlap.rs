//! `--overlap streams` on the command line: DeepSeek's pair, what is printed and written, and what is refused.

use crate::cli::{fails, json as printed, pipesim};
use crate::support::root;
use serde_json::{Value, json};
use std::fs;

fn file() -> String {
    root().join("examples/deepseek-v3-pair.json").display().to_string()
}

#[test]
fn deepseeks_pair_is_printed() {
    let line = format!("predict -p 1 -m 2 --chunks 1 -s interleaved-overlap --profile {} --overlap", file());
    let found = printed(&format!("{line} streams -q --format json"))["predictions"][0].clone();
    let pair = &found["pairs"][0];
    let ms = |key: &str| pair[key].as_f64().unwrap() / 1e6;
    assert!((ms("duration_ns") / 129.012 - 1.0).abs() < 0.01, "{pair}");
    assert!((ms("in_a_row_ns") / 244.069 - 1.0).abs() < 0.011, "{pair}");
    assert_eq!(pair["count"], 1);
    let whole = ms("forward_alone_ns") + ms("duration_ns") + ms("backward_alone_ns");
    assert!((found["makespan"].as_f64().unwrap() - whole).abs() < 1e-6, "{found}");
    let makespan = |overlap: &str| printed(&format!("{line} {overlap} -q --format json"))["predictions"][0].clone();
    let alone = ms("forward_alone_ns") + ms("backward_alone_ns");
    for (overlap, expected) in [("atomic", alone), ("max", ms("backward_alone_ns"))] {
        let found = makespan(overlap);
        assert!((found["makespan"].as_f64().unwrap() - alone - expected).abs() < 1e-6, "{overlap}: {found}");
        assert!(found["pairs"].is_null(), "{found}");
    }
    let (_, out, _) = pipesim(&format!("{line} streams -q --format md"));
    assert!(out.contains("128.1 ms") && out.contains("241.5 ms"), "{out}");
}

#[test]
fn traces_pictures_and_pages_show_the_streams() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let files = ["a.svg", "a.html", "a.trace.json", "b.trace.json"].map(at);
    let line = format!("predict -p 2 -m 4 -s interleaved-overlap --profile {} -q --overlap", file());
    let [svg, html, trace, plain] = &files;
    assert_eq!(pipesim(&format!("{line} streams -o {svg} -o {html} -o {trace}")).0, 0);
    assert_eq!(pipesim(&format!("{line} atomic -o {plain}")).0, 0);
    let read = |path: &String| fs::read_to_string(path).unwrap();
    let events = |path: &String| {
        let trace: Value = serde_json::from_str(&read(path)).unwrap();
        trace["traceEvents"].as_array().unwrap().clone()
    };
    let of = |events: &[Value], category: &str| {
        events.iter().filter(|event| event["cat"] == category).cloned().collect::<Vec<_>>()
    };
    let opened = events(trace);
    // 16 chunk ops of one layer each, forward and backward: four sub-ops in a forward, six and one beside in a backward
    let count = |category: &str| of(&opened, category).len();
    assert_eq!([count("compute stream"), count("communication stream"), count("side stream")], [16 * 6, 16 * 4, 16]);
    assert!(of(&events(plain), "compute stream").is_empty());
    // no sub-op overlaps another one of its stream, and none leaves its device's ops
    for device in 1..=2 {
        for category in ["compute stream", "communication stream"] {
            let mut spans: Vec<(f64, f64)> = of(&opened, category)
                .iter()
                .filter(|event| event["pid"] == device)
                .map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap()))
                .collect();
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0 + 0.0021), "{category} of {device}");
        }
    }
    assert!(read(svg).contains("communication") && read(html).contains("dispatch_F"));
}

#[test]
fn streams_without_sub_ops_are_refused() {
    let says = ["--overlap streams needs the times of sub-ops", "--costs", "--profile", "--model"];
    for verb in ["predict", "explain", "check", "export --to json"] {
        fails(&format!("{verb} -p 2 -m 4 -s dualpipe-v --overlap streams"), 2, &says);
    }
    let kind = |ns| json!({"duration_ns": ns, "median_ns": ns, "p10_ns": ns, "p90_ns": ns, "samples": 1});
    let mut whole: Value = serde_json::from_str(r#"{"schema_version": 1, "provenance": {}, "layers": 0, "parts": [], "gap_ns": 0, "keep": 1.0,
        "op_overhead_ns": {"F": 0, "I": 0, "W": 0}, "link": {"put_ns": 0, "bytes": 0, "latency_ns": 0},
        "step": {"optimizer_embedding_ns": 0, "optimizer_block_ns": 0, "norm_block_ns": 0, "reduce_put_ns": 0, "reduce_add_ns": 0}}"#)
    .unwrap();
    whole["stages"] = json!(vec![json!({"kinds": {"F": kind(1000), "B": kind(2000)}}); 4]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("whole.json").display().to_string();
    fs::write(&path, whole.to_string()).unwrap();
    fails(
        &format!("predict -p 2 -m 4 -s dualpipe-v --overlap streams --profile {path}"),
        2,
        &["--overlap streams needs the times of sub-ops", "--profile", "add sub_ops"],
    );
    let dense = "predict --model llama-3-8b --hardware h100-sxm -p 2 -m 4 -s dualpipe-v --overlap streams";
    fails(dense, 2, &["--overlap streams", "--model", "--overlap atomic"]);
    fails("run -p 2 -m 4 -s dualpipe-v --overlap streams", 2, &["--overlap streams is for predictions", "atomic"]);
    let line = format!("-p 2 -m 4 -s dualpipe-v --overlap streams --profile {}", file());
    assert_eq!(pipesim(&format!("check -q {line}")).0, 0);
    assert_eq!(pipesim(&format!("explain -q {line}")).0, 0);
    fails(&format!("predict -p 2 -m 4 -s 1f1b --overlap streams --profile {}", file()), 2, &["no overlapped pairs"]);
}

#[test]
fn files_of_sub_ops_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.json").display().to_string();
    let cases = [
        (
            r#"{"schema_version": 1, "stages": [{"sub_ops": [{"layers": 2}], "layers": 3}]}"#,
            "expected 3 layers, found 2",
        ),
        (r#"{"schema_version": 1, "stages": [{"sub_ops": [{"atn_F_ns": 2}]}]}"#, "atn_F_ns"),
        (r#"{"schema_version": 1, "stages": [{"sub_ops": [{"attn_F_ns": 2e30}]}]}"#, "attn_F_ns"),
        (r#"{"schema_version": 1, "stages": [{"sub_ops": [{"attn_F_ns": 1099511627777}]}]}"#, "18 minutes"),
        (r#"{"schema_version": 1, "stages": [{"sub_ops": [{"layers": 4000000000}]}]}"#, "layers"),
        (r#"{"schema_version": 1, "stages": [{"kinds": {}, "head": {}, "sub_ops": []}]}"#, "sub_ops"),
        (r#"{"schema_version": 1, "stages": [{"sub_ops": [{}]}]} {}"#, "JSON"),
        (r#"{"schema_version": 1, "stages": {"sub_ops": 3}}"#, "stages"),
    ];
    for (text, says) in cases {
        fs::write(&path, text).unwrap();
        fails(&format!("predict -p 1 -m 2 -s interleaved-overlap:v=1 --overlap streams --profile {path}"), 2, &[says]);
    }
    // A stage per layer at most.
    fails(
        &format!("predict -p 4 -m 4 -s interleaved-overlap:v=2 --overlap streams --profile {}", file()),
        2,
        &["layers"],
    );
}
