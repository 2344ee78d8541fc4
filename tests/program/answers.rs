//! Twenty-four questions with their commands, in `docs/src/answers.md`: each answer is in the line and after the words that the page says.

use crate::cli::{fails, json, pipesim};
use crate::support::{PROGRAM, root};
use serde_json::Value;
use std::process::Command;

/// A row of the page: its question, command, a part of the answer, and its line with the words up to that line's end.
struct Row {
    question: String,
    command: String,
    answer: String,
    place: (usize, usize),
}

/// Returns the rows below a heading.
fn rows(page: &str, heading: &str) -> Vec<Row> {
    let part = page.split_once(&format!("## {heading}\n")).unwrap().1;
    let lines = part.lines().take_while(|line| !line.starts_with("## "));
    let cells = lines.filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")).filter(|row| row.contains('`'));
    let row = |cells: &str| {
        let cells: Vec<&str> = cells.split(" | ").collect();
        let [question, command, answer, line, words] = cells[..] else { panic!("{cells:?}") };
        let code = |text: &str| text.trim_matches('`').to_string();
        let place = (line.parse().unwrap(), words.parse().unwrap());
        Row { question: question.to_string(), command: code(command), answer: code(answer), place }
    };
    cells.map(row).collect()
}

/// Returns the line of `text` that has `answer`, and the words up to its end.
fn place(text: &str, answer: &str) -> Option<(usize, usize)> {
    let line = text.lines().position(|line| line.contains(answer))?;
    Some((line + 1, text.lines().take(line + 1).flat_map(str::split_whitespace).count()))
}

#[test]
fn answers_are_where_the_page_says() {
    let page = std::fs::read_to_string(root().join("docs/src/answers.md")).unwrap();
    let mut wrong = Vec::new();
    for (heading, count) in [("An engineer", 12), ("A researcher", 6), ("A student", 6)] {
        let rows = rows(&page, heading);
        assert_eq!(rows.len(), count, "{heading}");
        for Row { question, command, answer, place: expected } in rows {
            let line = format!("{command} -q").replacen("pipesim ", &format!("{PROGRAM} "), 1);
            let line = if command.contains(" help ") || command.contains("schedules") {
                line.replace(" -q", "")
            } else {
                line
            };
            let output =
                Command::new("sh").args(["-c", &line]).current_dir(root()).env("COLUMNS", "100").output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let found = place(&text, &answer);
            if found != Some(expected) {
                wrong.push(format!("{question}: {command}: {answer} is at {found:?}, not {expected:?}"));
            }
            assert!(
                expected.0 <= 6 && expected.1 <= 100,
                "{question}: the answer is in the first six lines and 100 words"
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const LLAMA: &str = "--model llama-3-8b --hardware h100-sxm --stages 4 --batch 64 --seq 8192";

/// The first lines about several layouts name the options of the best, which give the same step; where none fits, the change that they
/// name makes it fit.
#[test]
fn several_layouts_have_an_answer_with_options_to_use() {
    let first = |line: &str| {
        let (code, out, err) = pipesim(&format!("predict -q {line}"));
        assert_eq!(code, 0, "{line}: {err}");
        out.split("\n\n").next().unwrap().to_string()
    };
    let predictions =
        |line: &str| json(&format!("predict -q --format json {line}"))["predictions"].as_array().unwrap().clone();
    let line = format!("{LLAMA} --tp 2,4 -s 1f1b,gpipe --recompute full");
    let answer = first(&line);
    assert!((4..=6).contains(&answer.lines().count()), "{answer}");
    let speed = |one: &Value| one["tokens_per_second_per_gpu"].as_f64().unwrap();
    let all = predictions(&line);
    let best =
        all.iter().filter(|one| one["memory"]["fits"] == true).max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap();
    let options = format!("-s {} --tp {}", best["schedule"].as_str().unwrap(), best["tp"]);
    assert!(answer.contains(&format!("{options}: ")), "{options}: {answer}");
    let alone = &predictions(&format!("{LLAMA} {options} --recompute full"))[0];
    assert_eq!((speed(alone), &alone["iteration_s"]), (speed(best), &best["iteration_s"]));
    // 70 G parameters on 8 and 16 GPUs: nothing fits as it is
    let large = "--model llama-3-70b --hardware h100-sxm --stages 4 --batch 64 --seq 8192 -s 1f1b";
    let answer = first(&format!("{large} --tp 2,4"));
    let (_, change) = answer.split_once("; --").unwrap();
    let (change, _) = change.split_once(" fits").unwrap();
    let tp = answer.split_once(" does not fit").unwrap().0.lines().last().unwrap().to_string();
    let options = if change.contains("tp ") { format!("--{change}") } else { format!("{tp} --{change}") };
    assert_eq!(predictions(&format!("{large} {options}"))[0]["memory"]["fits"], true, "{answer}");
}

/// What the first lines say of memory is not said again on stderr; without them it is.
#[test]
fn a_misfit_is_said_once() {
    let line = format!("predict {} -s 1f1b --tp 1", LLAMA.replace("llama-3-8b", "llama-3-70b"));
    let (_, out, err) = pipesim(&line);
    assert!(out.contains("1f1b does not fit: ") && !err.contains("does not fit"), "{err}");
    assert!(pipesim(&format!("{line} --format csv")).2.contains("warning: 1f1b does not fit"));
}

/// Whether each change fits is what its own prediction says; the first lines name the shortest that fits, and the picture what does not.
#[test]
fn explanations_know_what_fits() {
    let asked = "--model llama-3-8b --hardware h100-sxm -p 4 --seq 8192";
    let fits = |options: &str| {
        let found = json(&format!("predict {asked} {options} --format json -q"));
        let one = &found["predictions"][0];
        (one["memory"]["fits"].as_bool().unwrap(), one["iteration_s"].as_f64().unwrap())
    };
    let all = json(&format!("explain {asked} -m 8 -s 1f1b,zb-v --format json -q"));
    for (one, name) in all["explanations"].as_array().unwrap().iter().zip(["1f1b", "zb-v"]) {
        assert_eq!(one["fits"], fits(&format!("-m 8 -s {name}")).0, "{name}");
    }
    let changes = all["explanations"][0]["advice"]["changes"].as_array().unwrap();
    let mut seen = [0, 0];
    for change in changes {
        let options = match (change["what"].as_str().unwrap(), change["change"].as_str().unwrap()) {
            ("schedule", name) => format!("-m 8 -s {name}"),
            ("micro" | "layers", option) => {
                let option = option.replace('`', "").replace("--", "");
                let (name, value) = option.split_once(' ').unwrap();
                let micro = if name == "micro" { "" } else { "-m 8" };
                format!("{micro} --{name} {value} -s 1f1b")
            }
            _ => continue,
        };
        let (expected, _) = fits(&options);
        assert_eq!(change["fits"], expected, "{options}: {change}");
        seen[usize::from(expected)] += 1;
    }
    assert!(seen[0] > 2 && seen[1] > 2, "some fit and some do not: {seen:?}");
    let (_, out, _) = pipesim(&format!("explain {asked} -m 8 -s 1f1b,zb-v -q"));
    assert!(out.contains("1f1b is the shortest that fits; zb-v") && out.contains("does not fit"), "{out}");
    assert!(fits("-m 8 -s zb-v").1 < fits("-m 8 -s 1f1b").1, "zb-v would be shorter");
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("x.svg");
    pipesim(&format!("predict {asked} -m 8 -s 1f1b,zb-v -q -o {}", picture.display()));
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.split_once("</title>").unwrap().0.contains("zb-v 2,029 ms (−20.6 %), does not fit"), "{svg:.300}");
}

/// The best of several layouts says its own split and what jitter adds, as it does alone; rows tell numbers of micro-batches apart.
#[test]
fn several_layouts_say_what_was_asked_besides() {
    let asked =
        "predict --model llama-3-8b --hardware h100-sxm -p 4 --seq 8192 -s 1f1b --balance --jitter 0.1 --samples 50 -q";
    let sentence = |out: &str| {
        let text = out.split_whitespace().collect::<Vec<_>>().join(" ");
        text.split_once(" With jitter ").unwrap().1.split_once(" ms.").unwrap().0.to_string()
    };
    let (_, several, _) = pipesim(&format!("{asked} -m 8 --tp 2,4"));
    let (_, alone, _) = pipesim(&format!("{asked} -m 8 --tp 2"));
    assert!(several.replace('\n', " ").contains("layers 9,9,8,6"), "{several}");
    assert!(alone.replace('\n', " ").contains("with layers 9,9,8,6"), "{alone}");
    assert_eq!(sentence(&several), sentence(&alone));
    let (_, sizes, _) = pipesim(&format!("{asked} -m 8,16 --tp 2"));
    assert!(sizes.contains("m=8") && sizes.contains("m=16"), "{sizes}");
}

/// A wide interval is said in words, with its reason and the narrower interval; others are not.
#[test]
fn wide_intervals_are_said_in_words() {
    let mixture =
        "predict -q --model qwen3-30b-a3b --hardware h100-sxm --stages 4 --micro 8 --seq 4096 --ep 4 --dp 4 -s 1f1b";
    for (more, is_wide) in [("", false), ("--stack torchtitan --framework-version 0.2", true)] {
        let line = format!("{mixture} {more}");
        let found = json(&format!("{line} --format json"));
        let [low, high] = [0, 1].map(|end| found["predictions"][0]["iteration_interval_s"][end].as_f64().unwrap());
        assert_eq!(high >= 2.0 * low, is_wide, "{line}");
        let out = pipesim(&line).1;
        assert_eq!(out.contains("times as long") && out.contains("; 50 % "), is_wide, "{out}");
        let rows: Vec<Vec<String>> = pipesim(&format!("{line} --format csv"))
            .1
            .lines()
            .map(|row| row.split(',').map(str::to_string).collect())
            .collect();
        let column = |name: &str| rows[1][rows[0].iter().position(|own| own == name).unwrap()].clone();
        let half = &found["predictions"][0]["iteration_interval_50_s"];
        for (end, name) in [(0, "iteration_low_50_s"), (1, "iteration_high_50_s")] {
            assert_eq!(column(name).parse::<f64>().unwrap(), half[end].as_f64().unwrap());
        }
        assert_eq!(rows[0].last().unwrap(), "outside");
    }
}

/// Plans of other degrees have a line each, with their time and the change from plan 1.
#[test]
fn plans_of_other_degrees_are_rows() {
    let line = "plan -q --model gpt2-large --hardware a100-sxm-80gb --gpus 8 --batch 32 --seq 1024";
    let (plans, out) = (json(&format!("{line} --format json"))["plans"].as_array().unwrap().clone(), pipesim(line).1);
    let seconds = |plan: &Value| plan["iteration_s"].as_f64().unwrap();
    let degrees = |plan: &Value| ["tp", "pp", "dp"].map(|key| plan[key].as_u64().unwrap());
    let rows: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("Or plan ")).collect();
    assert!((1..=3).contains(&rows.len()), "{out}");
    for row in rows {
        let (rank, rest) = row.split_once(": ").unwrap();
        let plan = &plans[rank.parse::<usize>().unwrap() - 1];
        let [tp, pp, dp] = degrees(plan);
        assert!(
            degrees(plan) != degrees(&plans[0]) && rest.starts_with(&format!("tp {tp}, pp {pp}, dp {dp}")),
            "{row}"
        );
        let change = format!("{:+.1} %", 100.0 * (seconds(plan) / seconds(&plans[0]) - 1.0)).replace('-', "−");
        assert!(rest.contains(&change), "{row}: {change}");
    }
}

/// Duplicates are explained once, and a saved prediction is not taken for a measurement.
#[test]
fn explanations_say_what_they_are_of() {
    let (code, out, err) = pipesim("explain -p 2 -m 4 -s 1f1b -s 1f1b");
    assert!(
        code == 0 && err.contains("note: 1f1b is named more than once") && !out.contains("shortest"),
        "{out} {err}"
    );
    assert_eq!(out.matches("an average device works").count(), 1, "{out}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved.json").display().to_string();
    assert_eq!(pipesim(&format!("predict -q -p 2 -m 4 -s 1f1b --costs F=1ms -o {path}")).0, 0);
    let out = pipesim(&format!("explain -q {path}")).1;
    assert!(out.contains("This step is predicted, not measured."), "{out}");
    let measured = root().join("examples/slow-stage.json");
    assert!(!pipesim(&format!("explain -q {}", measured.display())).1.contains("not measured"));
    let (_, _, err) = pipesim(&format!("explain -p 2 -m 4 -s 1f1b --window 100.. -o {path}.svg"));
    assert!(err.contains("--window begins after the end, 15 units: everything is drawn"), "{err}");
}

/// A deadlock has a line that says which device waits for what.
#[test]
fn a_deadlock_has_a_verdict() {
    let (_, out, _) = pipesim("check -q --stages 4 --micro 8 -s zb-v --delivery batched");
    let first = out.lines().next().unwrap();
    assert!(first.starts_with("zb-v deadlocks under batched: device ") && first.contains(" waits for "), "{out}");
    assert!(!pipesim("check -q --stages 4 --micro 8 -s zb-v --delivery one-sided").1.contains("deadlocks"));
}

/// Words of the field, and schedules, are explained in sentences.
#[test]
fn help_has_whole_sentences() {
    for word in ["tp", "zero", "zb-v", "deadlock", "dp", "pp", "ep", "cp", "mfu", "recompute", "drain", "fill"] {
        let (code, out, err) = pipesim(&format!("help {word}"));
        assert_eq!((code, err.as_str()), (0, ""), "{word}");
        let (_, sentence) = out.trim_end().rsplit_once(": ").unwrap_or(("", out.trim_end()));
        assert!(sentence.ends_with('.') && sentence.split(' ').count() >= 5, "{word}: {out}");
    }
}

/// Errors name what is missing, and ranges of GPUs double.
#[test]
fn questions_that_lack_something_are_told_what() {
    for verb in ["predict", "explain"] {
        fails(&format!("{verb} --model llama-3-8b --stages 4 --batch 64"), 2, &["--hardware h100-sxm"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("run").display().to_string();
    fails(&format!("train -p 2 -m 2 -s 1f1b --epochs 1e9 -o {at}"), 2, &["--epochs of at most"]);
    let path = folder.path().join("plan.toml").display().to_string();
    let plan = "plan -q --model gpt2 --hardware h100-sxm --batch 64 --seq 1024 --top 1 --format csv --gpus 1..5";
    let (code, out, err) = pipesim(&format!("{plan} --save-question {path}"));
    assert_eq!(code, 0, "{err}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("gpus = [1,2,4]"));
    let header: Vec<&str> = out.lines().next().unwrap().split(',').collect();
    assert!(header.contains(&"optimizer_s") && header.contains(&"other_s"), "{header:?}");
}
