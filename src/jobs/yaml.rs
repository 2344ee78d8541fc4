//! YAML as JSON values.

use crate::error::JobError;
use serde_json::{Map, Value};
use yaml_rust2::{Yaml, YamlLoader};

/// Deepest nesting that is read.
const DEEPEST: usize = 64;
/// Most values of a document, after aliases are replaced by what they stand for.
const MOST_VALUES: usize = 200_000;

/// Reads the first document of a text; an empty one is null.
///
/// # Errors
/// It is no YAML, or has keys that are no texts.
pub fn parse(name: &str, text: &str) -> Result<Value, JobError> {
    let wrong = |line: usize, why: String| JobError::File { place: format!("{name}:{line}"), why };
    let documents = YamlLoader::load_from_str(text)
        .map_err(|error| wrong(error.marker().line(), format!("expected YAML: {}; correct the line", error.info())))?;
    let mut left = MOST_VALUES;
    match documents.first() {
        None => Ok(Value::Null),
        Some(document) => value(document, DEEPEST, &mut left).map_err(|why| wrong(1, why)),
    }
}

fn value(yaml: &Yaml, deepest: usize, left: &mut usize) -> Result<Value, String> {
    *left =
        left.checked_sub(1).ok_or_else(|| format!("expected at most {MOST_VALUES} values, found more; shorten it"))?;
    let inner = deepest.checked_sub(1).ok_or_else(|| format!("expected at most {DEEPEST} levels, found more"))?;
    Ok(match yaml {
        Yaml::Null | Yaml::BadValue | Yaml::Alias(_) => Value::Null,
        Yaml::Boolean(yes) => Value::Bool(*yes),
        Yaml::Integer(number) => Value::from(*number),
        Yaml::Real(text) => yaml
            .as_f64()
            .and_then(serde_json::Number::from_f64)
            .map_or_else(|| Value::from(text.as_str()), Value::Number),
        Yaml::String(text) => Value::from(text.as_str()),
        Yaml::Array(list) => {
            list.iter().map(|one| value(one, inner, left)).collect::<Result<_, _>>().map(Value::Array)?
        }
        Yaml::Hash(map) => {
            let mut object = Map::new();
            for (key, one) in map {
                let key = match value(key, 1, left)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                object.insert(key, value(one, inner, left)?);
            }
            Value::Object(object)
        }
    })
}
