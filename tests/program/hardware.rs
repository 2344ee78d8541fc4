//! A model on hardware, from the command line: this machine as hardware, and invalid requests.

use crate::cli::{fails, json, pipesim};
use crate::support::Dice;
use serde_json::Value;

/// Measures this machine's table, predicts a step of a small GPT-2 with it, and compares it with a run. Times are printed but
/// not judged: other processes may use the cores.
#[test]
fn this_machine_is_one_of_the_machines() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/mine.toml", folder.path().display());
    let (code, out, err) = pipesim(&format!("profile --hardware -o {path}"));
    assert!(code == 0 && out.is_empty() && err.contains("predict --hardware"), "{err}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().any(|line| line == "base = \"cpu\""), "{text}");
    assert!(text.lines().any(|line| line.starts_with("memory_gib = ")), "the system says what is free: {text}");
    let two = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    for key in ["reduce_latency_us = ", "reduce_gbytes_per_s = ", "exchange_gbytes_per_s = "] {
        assert!(!two || text.lines().any(|line| line.starts_with(key)), "{key}: {text}");
    }
    let layout =
        "--model small --precision fp32 --stack pipesim --stages 2 --micro 4 --seq 64 -s 1f1b --format json -q";
    let predicted = json(&format!("predict --hardware {path} {layout}"));
    let one = &predicted["predictions"][0];
    let iteration = one["iteration_s"].as_f64().unwrap();
    let parts: f64 = one["time_s"].as_object().unwrap().values().map(|part| part.as_f64().unwrap()).sum();
    assert!(iteration > 0.0 && iteration.is_finite() && (parts / iteration - 1.0).abs() < 1e-9, "{one}");
    // a machine that is twice as fast by its table is predicted to be twice as fast, except for its links
    let doubled: Vec<String> = text
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some((key, rest))
                if key.ends_with("_tflops")
                    || ["product_gflops_per_watt", "memory_gbytes_per_s", "link_gbytes_per_s"].contains(&key) =>
            {
                let number: f64 = rest.split_whitespace().next().unwrap().parse().unwrap();
                format!("{key} = {}", 2.0 * number)
            }
            _ => line.to_string(),
        })
        .collect();
    let faster = format!("{}/faster.toml", folder.path().display());
    std::fs::write(&faster, doubled.join("\n")).unwrap();
    let faster =
        json(&format!("predict --hardware {faster} {layout}"))["predictions"][0]["iteration_s"].as_f64().unwrap();
    assert!((1.5..2.01).contains(&(iteration / faster)), "{iteration} {faster}");
    let tiny = json(&format!("predict --hardware {path} {}", layout.replace("small", "tiny")));
    let tiny = tiny["predictions"][0]["iteration_s"].as_f64().unwrap();
    let run = json("run --model tiny --stages 2 --micro 4 --seq 64 -s 1f1b --steps 3 --warmup 1 --format json -q");
    let measured = run["runs"][0]["iteration_ms"]["median"].as_f64().unwrap();
    assert!(tiny < iteration && measured > 0.0, "{tiny} {iteration} {measured}");
    println!("predicted {:.1} ms a step, measured {measured:.1} ms", tiny * 1e3);
    for option in ["--stages 2", "--steps 3", "--model small"] {
        fails(&format!("profile --hardware {option}"), 2, &["--hardware measures the machine alone"]);
    }
    fails("profile -o x.json", 2, &["--stages"]);
    fails("profile --hardware -o x.json", 2, &[".toml"]);
}

/// On any machine an iteration is the sum of its parts and contains its pipeline; both replicas of a bidirectional stage
/// together run each micro-batch once.
#[test]
fn iterations_hold_their_pipelines_under_every_engine() {
    let asked = "predict --model llama-3-8b --hardware h100-sxm -p 4 -m 8 --seq 4096 --format json -q";
    let schedules = "-s 1f1b,gpipe,interleaved-1f1b,zb-h1,zb-v,interleaved-zb,dualpipe,dualpipe-v,chimera";
    for options in [
        "",
        "--overlap max",
        "--overlap runtime",
        "--transfer 5",
        "--transfer 5 --overlap max",
        "--delivery buffered(2)",
        "--cores 2",
        "--dp 2 --tp 2",
    ] {
        let found = json(&format!("{asked} {schedules} {options}"));
        let all = found["predictions"].as_array().unwrap();
        assert!(all.len() >= 5, "{options}: {found}");
        for one in all {
            let number = |key: &str| one[key].as_f64().unwrap();
            let parts = one["time_s"].as_object().unwrap().values().map(|part| part.as_f64().unwrap());
            assert!(parts.clone().all(|part| part >= 0.0), "{options}: {one}");
            assert!((parts.sum::<f64>() / number("iteration_s") - 1.0).abs() < 1e-9, "{options}: {one}");
            assert!(number("iteration_s") * 1e3 >= number("makespan"), "{options}: {one}");
            let busy: f64 = ["compute", "tensor_parallel_exposed", "imbalance"]
                .map(|part| one["time_s"][part].as_f64().unwrap())
                .iter()
                .sum();
            assert!((busy * 1e3 / number("ideal") - 1.0).abs() < 1e-6, "{options}: {one}");
        }
    }
}

/// The peak of a data sheet limits products, whatever the base: an H20 is no faster than its 148 TFLOP/s, and twice the peak
/// slows nothing.
#[test]
fn compute_is_never_faster_than_the_stated_peak() {
    let folder = tempfile::tempdir().unwrap();
    let mfu = |name: &str, numbers: &str, precision: &str| {
        let path = format!("{}/{name}.toml", folder.path().display());
        std::fs::write(&path, format!("base = \"h100-sxm\"\n{numbers}")).unwrap();
        let asked = "predict --model llama-3-8b --stages 4 --micro 16 --seq 4096 -s 1f1b --format json -q";
        let found = json(&format!("{asked} --hardware {path} --precision {precision}"));
        let number = |key: &str| found["predictions"][0][key].as_f64().unwrap();
        (number("mfu"), number("iteration_s"))
    };
    let h20 = "bf16_tflops = 148\nfp8_tflops = 296\nfp32_tflops = 74\nmemory_gib = 96\nmemory_gbytes_per_s = 4000\npower_watts = 500";
    for (precision, most) in [("bf16", 1.0), ("fp8", 2.0), ("fp32", 0.5)] {
        let (found, _) = mfu("h20", h20, precision);
        assert!((0.4 * most..most).contains(&found), "{precision}: {found}");
        let (_, before) = mfu("h100", "", precision);
        let (_, doubled) = mfu("doubled", "bf16_tflops = 1978", precision);
        assert!(doubled <= before, "{precision}: {before} {doubled}");
    }
    for (numbers, expected) in [
        ("memory_efficiency = 70", "memory_efficiency to be at most 1"),
        ("power_watts = 1e15", "power_watts to be at most"),
    ] {
        let path = format!("{}/wrong.toml", folder.path().display());
        std::fs::write(&path, format!("base = \"h100-sxm\"\n{numbers}")).unwrap();
        fails(&format!("predict --model gpt2 --hardware {path} --stages 2 --micro 4"), 2, &[expected]);
    }
}

/// A configuration with experts in a family without is rejected by their key; unknown keys are listed.
#[test]
fn keys_that_change_a_model_are_never_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/config.json", folder.path().display());
    let write = |more: &str| {
        let sizes = r#""hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000"#;
        std::fs::write(&path, format!("{{{sizes}, {more}}}")).unwrap();
    };
    let asked = format!("predict --model {path} --hardware h100-sxm --stages 4 --micro 8 -s 1f1b");
    write(r#""model_type": "llama", "num_local_experts": 8, "num_experts_per_tok": 2"#);
    fails(&asked, 2, &["num_local_experts", "without keys of other families"]);
    write(r#""model_type": "llama", "flux": 3"#);
    let (code, _, err) = pipesim(&asked);
    assert!(code == 0 && err.contains("unknown keys") && err.contains("flux"), "{err}");
    write(r#""model_type": "mistral", "sliding_window": 4096"#);
    // windows that are shorter than the sequence are predicted, and shorten the step
    let step = || json(&format!("{asked} --seq 8192 --format json -q"))["predictions"][0].clone();
    let windowed = step()["iteration_s"].as_f64().unwrap();
    write(r#""model_type": "mistral", "sliding_window": null"#);
    assert!(windowed < step()["iteration_s"].as_f64().unwrap());
}

/// Invalid requests are rejected in one line that says what was expected and found.
#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let asked = "predict --hardware h100-sxm --stages 4 -s 1f1b -q";
    for (options, expected) in [
        ("--tp 3 --micro 8", "32 heads to be a multiple of --tp"),
        ("--dp 3 --batch 64", "found 64; choose 63"),
        ("--batch 10 --micro-batch-size 4", "found 10; choose 8"),
        ("--batch 64 --micro 5 --micro-batch-size 2", "leave --micro out"),
        ("--cp 3 --micro 8", "multiple of --cp 3"),
        ("--dp 99999999 --micro 8", "between 1 and 1048576"),
        ("--dp 65536 --micro-batch-size 65537 --batch 65536", "found 65536"),
        ("--dp 65536 --micro-batch-size 65536 --batch 128", "found 128"),
        ("--micro 8 --model gpt2 --seq 4096", "--seq to be at most 1024"),
        ("--micro 8 --layers 8,8,8", "4 stages, found 3"),
        ("--micro 8 --layers 8,8,8,9", "add up to the model's 32"),
        ("--micro 8 --layers 32,0,0,0", "at least 1 layer"),
        ("--micro 8 --precision nvfp4", "a precision that h100-sxm has"),
    ] {
        let model = if options.contains("--model") { "" } else { "--model llama-3-8b" };
        let (code, out, err) = pipesim(&format!("{asked} {model} {options}"));
        assert!(code == 2 && out.is_empty() && err.trim_end().lines().count() == 1, "{options}: {err}");
        assert!(err.contains(expected), "{options}: {err}");
    }
    for command in ["run --stages 2 --micro 4 --balance", "predict --stages 2 --micro 4 --costs F=1 --balance"] {
        fails(command, 2, &["--balance"]);
    }
}

/// Returns `command` with the options of `change`.
fn changed(command: &str, change: &str) -> String {
    let mut words: Vec<&str> = command.split(' ').collect();
    let options: Vec<&str> = change.split(' ').filter(|word| word.starts_with("--")).collect();
    let short = |word: &str| match word {
        "-p" => "--stages".to_string(),
        "-m" => "--micro".to_string(),
        other => other.to_string(),
    };
    while let Some(at) = words.iter().position(|word| options.contains(&&*short(word))) {
        let takes = words.get(at + 1).is_some_and(|next| !next.starts_with('-'));
        words.drain(at..=at + usize::from(takes));
    }
    format!("{} {change}", words.join(" "))
}

/// A suggestion gives what it promises when the command runs with it, for any options; it takes more GPUs only if it says so.
#[test]
fn suggestions_are_what_running_them_gives() {
    let folder = tempfile::tempdir().unwrap();
    let star = folder.path().join("mine.star").display().to_string();
    std::fs::write(&star, include_str!("../../schedules/1f1b.star")).unwrap();
    let schedules = [
        "1f1b",
        "zb-v",
        "interleaved-1f1b:v=2",
        "gpipe",
        "zb-1p",
        "dualpipe",
        "looped-bfs --chunks 2",
        star.as_str(),
        "auto",
    ];
    let machines = ["", "", " --transfer 2", " --delivery megatron", " --slots 1", " --transfer 1 --link-scope egress"];
    let more = ["", "", " --overlap max", " --memory-cap 24GiB", " --memory-cap 3"];
    let mut dice = Dice(3);
    let (mut suggested, mut asked) = (0, 0);
    while suggested < 20 && asked < 80 {
        asked += 1;
        let mut of = |choices: &[&str]| choices[dice.below(choices.len())].to_string();
        let (schedule, machine, more) = (of(&schedules), of(&machines), of(&more));
        let (p, tp, dp, size) = (of(&["2", "4"]), of(&["1", "2", "4"]), of(&["1", "2", "4"]), of(&["1", "2", "4"]));
        let micro = of(&["-m 4", "-m 8", "--batch 32"]);
        let command = format!(
            "predict --model llama-3-8b --hardware h100-sxm -p {p} --tp {tp} --dp {dp} --micro-batch-size {size} {micro} --seq 8192 \
             -s {schedule}{machine}{more} --format json"
        );
        let (code, out, err) = pipesim(&command);
        if code != 0 {
            // an unknown schedule, or a delivery that deadlocks
            assert!(code == 2 && err.contains("no overlapped pairs") || code == 3, "{command}: {err}");
            continue;
        }
        let found: Value = serde_json::from_str(&out).unwrap();
        let one = &found["predictions"][0];
        assert_eq!(one["misfit"].is_null(), one["memory"]["fits"].as_bool().unwrap(), "{command}");
        let Some(change) = one["misfit"]["remedy"]["change"].as_str() else { continue };
        suggested += 1;
        let remedy = &one["misfit"]["remedy"];
        let then = changed(&command, change);
        let found = json(&then);
        let then_one = &found["predictions"][0];
        let per_device = then_one["memory"]["per_device"].as_array().unwrap();
        let bytes = per_device.iter().map(|device| device["total"].as_u64().unwrap()).max();
        assert!(then_one["memory"]["fits"].as_bool().unwrap(), "{command}\n{then}");
        assert_eq!(
            (&remedy["iteration_s"], remedy["bytes"].as_u64(), &remedy["gpus"]),
            (&then_one["iteration_s"], bytes, &then_one["gpus"]),
            "{command}\n{then}"
        );
        let more = remedy["gpus"].as_u64() > one["gpus"].as_u64();
        assert_eq!(more, err.contains("needs more GPUs"), "{command}: {err}");
    }
    assert!(suggested >= 10, "{suggested} suggestions of {asked} questions");
}

/// A suggested --tp changes the default of --etp, so the suggestion gives that, too; the command then predicts what was promised.
#[test]
fn suggestions_keep_how_experts_are_shared() {
    let asked = "predict --model qwen3-30b-a3b --hardware h100-sxm --batch 64 --micro-batch-size 1 --seq 32768 -s 1f1b --format json -q";
    for (options, expected) in [
        ("-p 2 --tp 2 --sequence-parallel --dp 8 --ep 8", Some("2")),
        ("-p 2 --tp 1 --dp 8 --ep 8", Some("1")),
        ("-p 2 --tp 2 --sequence-parallel --dp 8 --ep 8 --stack torchtitan", None),
    ] {
        let command = format!("{asked} {options}");
        let found = json(&command);
        let remedy = &found["predictions"][0]["misfit"]["remedy"];
        let change = remedy["change"].as_str().unwrap();
        let words: Vec<&str> = change.split_whitespace().collect();
        let of = |option: &str| words.iter().position(|word| *word == option).map(|place| words[place + 1]);
        assert!(of("--tp").is_some() && of("--etp") == expected, "{command}: {change}");
        let then = changed(&command, change);
        let one = &json(&then)["predictions"][0];
        assert_eq!((&remedy["iteration_s"], &remedy["gpus"]), (&one["iteration_s"], &one["gpus"]), "{then}");
        assert_eq!(one["memory"]["fits"], true, "{then}");
    }
}

/// Only layouts that span nodes and schedules that the software lacks cause notes.
#[test]
fn unusual_layouts_are_pointed_out() {
    let told = |options: &str| {
        let (code, _, err) =
            pipesim(&format!("predict --model llama-3-8b --hardware h100-sxm -p 4 --micro 8 {options}"));
        assert_eq!(code, 0, "{err}");
        err
    };
    assert!(told("-s 1f1b --tp 16").contains("--tp 16 is more than the 8 GPUs of a node"));
    let plain = told("-s 1f1b,interleaved-1f1b --tp 8");
    assert!(!plain.contains("of a node") && !plain.contains("implements"), "{plain}");
    assert!(told("-s 1f1b,ZB_V").contains(
        "megatron-core implements 1f1b, interleaved-1f1b, interleaved-overlap; zb-v is predicted as if it did"
    ));
    assert!(!told("-s zb-v --stack torchtitan").contains("implements"));
    assert!(!told("-s zb-v --stack pipesim --precision fp32").contains("implements"));
}

/// The choice of `auto` fits and is at least as fast as ZB-V, also with less memory; if nothing fits, it says so.
#[test]
fn auto_fits_into_memory() {
    let asked = |options: &str| {
        let (code, out, err) = pipesim(&format!(
            "predict --model llama-3-70b --hardware h100-sxm -p 4 --tp 8 --dp 2 --batch 16 --seq 8192 --sequence-parallel --zero 1 \
             --format json {options}"
        ));
        assert_eq!(code, 0, "{err}");
        (serde_json::from_str::<Value>(&out).unwrap()["predictions"].clone(), err)
    };
    let (found, _) = asked("-s auto,zb-v --memory-cap 54GiB");
    assert!(found[0]["memory"]["fits"].as_bool().unwrap() && found[1]["memory"]["fits"].as_bool().unwrap(), "{found}");
    assert!(found[0]["iteration_s"].as_f64() <= found[1]["iteration_s"].as_f64(), "{found}");
    let (found, err) = asked("-s auto --memory-cap 3GiB");
    assert!(!found[0]["memory"]["fits"].as_bool().unwrap(), "{found}");
    assert!(err.contains("no schedule fits into 3.0 GiB; auto chose the one that needs the least: naive"), "{err}");
}

/// The makespan of one table and the iteration of another are distinguished, with the same format.
#[test]
fn an_iteration_is_the_makespan_and_what_ends_the_step_in_the_same_digits() {
    let line = "predict --model llama-3-70b --hardware h100-sxm --tp 8 -p 4 -m 64 --seq 8192 --sequence-parallel -s 1f1b -q --tables";
    let (code, out, err) = pipesim(line);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("An iteration is the makespan plus the end of a step: data, optimizer,"), "{out}");
    let rows: Vec<&str> = out.lines().filter(|row| row.starts_with("1f1b  ") && !row.contains("bubble ")).collect();
    let ms = |row: &str| -> Vec<f64> {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let times = cells.windows(2).filter(|pair| pair[1] == "ms");
        times.map(|pair| pair[0].replace(',', "").parse().unwrap()).collect()
    };
    let (makespan, parts) = (ms(rows[0])[0], ms(rows[1]));
    let [data, optimizer, other] = parts[parts.len() - 3..] else { panic!("{out}") };
    assert!((makespan + data + optimizer + other - parts[0]).abs() < 1.5 && parts[0] > makespan, "{out}");
    for row in rows {
        let whole = row.split_whitespace().filter_map(|word| word.split('.').next());
        let long = whole.flat_map(|word| word.split(|c: char| !c.is_ascii_digit() && c != ',')).find(|number| {
            number.len() > 3 && number.split(',').skip(1).any(|three| three.len() != 3)
                || number.split(',').next().unwrap().len() > 3
        });
        assert_eq!(long, None, "{row}");
    }
}

/// Megatron's three options are one here: `block` with some layers takes time and memory between none and full.
#[test]
fn some_layers_are_recomputed_under_megatrons_names() {
    let asked = "predict --model llama-3-70b --hardware h100-sxm --stages 8 --tp 8 --sequence-parallel --dp 2 --micro 64 --seq 8192 -s 1f1b -q --format json";
    let of = |how: &str| {
        let found = json(&format!("{asked} {how}"));
        let one = &found["predictions"][0];
        let bytes =
            one["memory"]["per_device"].as_array().unwrap().iter().map(|device| device["total"].as_u64().unwrap());
        (one["iteration_s"].as_f64().unwrap(), bytes.max().unwrap())
    };
    let block = of("--recompute-granularity full --recompute-method block --recompute-num-layers 5");
    assert_eq!(block, of("--recompute block:5"));
    assert_eq!(of("--recompute-granularity=selective"), of("--recompute selective"));
    let [none, full] = ["none", "full"].map(|how| of(&format!("--recompute {how}")));
    assert!(
        none.0 < block.0 && block.0 < full.0 && full.1 < block.1 && block.1 < none.1,
        "{none:?} {block:?} {full:?}"
    );
    let (code, _, err) = pipesim(&format!("{asked} --recompute-method block --recompute-num-layers 5"));
    assert!(code == 2 && err.contains("--recompute-granularity selective, or full with"), "{code} {err}");
    let (code, _, err) = pipesim(&format!("{asked} --recompute block"));
    assert!(code == 2 && err.contains("block:5"), "{code} {err}");
}

/// The answer comes before the timeline, in at most six lines and in the figures of the JSON; what does not fit is said first. Tables are
/// printed if they are asked for.
#[test]
fn the_answer_comes_before_the_timeline() {
    let model = "predict --model llama-3-70b --hardware h100-sxm --dp 8 --batch 128 --seq 8192 -q --stages 2 --tp 4";
    for (layout, fits) in [("-s 1f1b", false), ("-s naive,1f1b --zero 1 --recompute full --sequence-parallel", true)] {
        let line = format!("{model} {layout}");
        let (found, (code, text, err)) = (json(&format!("{line} --format json")), pipesim(&line));
        assert_eq!(code, 0, "{err}");
        let predictions = found["predictions"].as_array().unwrap();
        let seconds = |one: &&Value| one["iteration_s"].as_f64().unwrap();
        let best = predictions.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap();
        assert_eq!(best["memory"]["fits"], fits, "{line}");
        let first: Vec<&str> = text.split("\n\n").next().unwrap().lines().collect();
        assert!((4..=6).contains(&first.len()), "{text}");
        let change = best["misfit"]["remedy"]["change"].as_str().unwrap_or_default();
        assert_eq!(first[1].contains("does not fit"), !fits, "{text}");
        assert!(fits || !change.is_empty() && first[1].contains(change), "{change}: {text}");
        let ms = format!("{:.0}", 1e3 * seconds(&best));
        assert!(first.iter().any(|line| line.replace(',', "").contains(&format!("{ms} ms"))), "{ms}: {text}");
        assert!(!text.contains("Memory of the fullest device") && text.contains("│"), "{text}");
        let with_tables = pipesim(&format!("{line} --tables")).1;
        assert!(
            with_tables.contains("Memory of the fullest device") && with_tables.contains(first[0]),
            "{with_tables}"
        );
    }
    fails("predict --stages 2 --micro 4 --tables", 2, &["--model", "--tables"]);
}
