//! A question as options of the command line.

use pipesim_answer::question::Question;
use serde_json::Value;

/// Returns the options that a question represents, each with its name; `required` ones even if they have their default.
pub fn words(question: &Question, required: &[&str]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let mut words = Vec::new();
    for (name, value) in question.settings(required) {
        let all = match &value {
            Value::Bool(_) => vec![format!("--{name}")],
            Value::Array(list) if list.iter().all(Value::is_number) => {
                let separator = if name == "slice-lengths" { ":" } else { "," };
                vec![format!("--{name}={}", joined(list, separator))]
            }
            Value::Array(list) => list.iter().map(|one| format!("--{name}={}", text(one))).collect(),
            one => vec![format!("--{name}={}", text(one))],
        };
        words.extend(all.into_iter().map(|word| (name.clone(), word)));
    }
    words
}

fn joined(list: &[impl ToString], separator: &str) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}
