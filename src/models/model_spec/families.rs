//! The table of families, `models/families.toml`: what the keys of Hugging Face's `config.json` mean, by `model_type`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use toml::{Table as Toml, Value};

const TEXT: &str = include_str!("../../../models/families.toml");

/// How a property of a model is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Property {
    /// Keys of the file that say it, `OUTER.INNER` within an object; none if all models of the family agree.
    pub keys: Vec<String>,
    /// Value without a key, or of all models: a number, a word or a formula of other sizes.
    pub default: Option<Value>,
    /// Value if the key is null.
    pub null: Option<Value>,
}

/// A family of models.
#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    /// Values of `model_type`.
    pub types: Vec<String>,
    /// Types whose class may stand in `architectures`, too.
    pub classes: Vec<String>,
    pub properties: BTreeMap<String, Property>,
    /// Keys that change no size and no product.
    pub harmless: BTreeSet<String>,
    /// Keys that must have this value if they are there.
    pub values: BTreeMap<String, Value>,
    /// Keys that must be there: `transformers` has no class with defaults.
    pub required: Vec<String>,
}

/// A model with encoders.
pub(super) struct Composite {
    /// Type of the text model, if the file does not say.
    pub text: String,
    /// Whether the head is tied, if the file does not say.
    pub tied: bool,
    /// Whether the text model's own key says so, too.
    pub or_text: bool,
    /// Values of the text model's `model_type` that mean `text`.
    pub types: Vec<String>,
}

/// A part of layers that no family has here.
pub(super) struct NotModelled {
    pub what: String,
    /// Values of `model_type` of models that have it.
    pub types: Vec<String>,
    /// Keys that only these models have.
    pub keys: Vec<String>,
    /// Names of such layers in lists.
    pub layers: Vec<String>,
}

/// All families.
pub(super) struct Families {
    pub harmless: BTreeSet<String>,
    pub named: BTreeMap<String, Family>,
    pub composites: BTreeMap<String, Composite>,
    pub not_modelled: Vec<NotModelled>,
}

impl Families {
    /// Returns the family that a `model_type` belongs to.
    pub fn of_type(&self, kind: &str) -> Option<&Family> {
        self.named.values().find(|family| family.types.iter().any(|known| known == kind))
    }

    /// Returns all values of `model_type` that are read.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        let composites = self.composites.keys().map(String::as_str);
        let text = self.named.values().flat_map(|family| &family.types).map(String::as_str);
        composites.chain(text).collect::<BTreeSet<_>>().into_iter()
    }
}

/// Returns the table.
pub(super) fn families() -> &'static Families {
    static TABLE: OnceLock<Families> = OnceLock::new();
    TABLE.get_or_init(|| table(&TEXT.parse().expect("a test reads the table")))
}

fn words(entry: Option<&Value>) -> Vec<String> {
    let text = entry.and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().map(str::to_string).collect()
}

fn entries(table: &Toml, key: &str) -> Toml {
    table.get(key).and_then(Value::as_table).cloned().unwrap_or_default()
}

fn table(toml: &Toml) -> Families {
    let all = entries(toml, "families");
    let composite = |entry: &Value| {
        let is = |key: &str| entry.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = words(entry.get("text")).concat();
        Composite { text, tied: is("tied"), or_text: is("or_text"), types: words(entry.get("types")) }
    };
    let part = |entry: &Value| {
        let [types, keys, layers] = ["types", "keys", "layers"].map(|key| words(entry.get(key)));
        let what = entry.get("what").and_then(Value::as_str).unwrap_or_default().to_string();
        NotModelled { what, types, keys, layers }
    };
    let parts = toml.get("not_modelled").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    Families {
        harmless: words(toml.get("harmless")).into_iter().collect(),
        named: all.keys().map(|name| (name.clone(), family(&all, name))).collect(),
        composites: entries(toml, "composites").iter().map(|(name, entry)| (name.clone(), composite(entry))).collect(),
        not_modelled: parts.iter().map(part).collect(),
    }
}

/// Makes a family of those that it is like and of its own entries.
fn family(all: &Toml, name: &str) -> Family {
    let own = entries(all, name);
    let mut family = Family::default();
    for other in words(own.get("like")) {
        let other = self::family(all, &other);
        family.properties.extend(other.properties);
        family.harmless.extend(other.harmless);
        family.values.extend(other.values);
    }
    for (key, entry) in &own {
        match (key.as_str(), entry) {
            ("like" | "types" | "defaults", _) => {}
            ("classes", entry) => family.classes = words(Some(entry)),
            ("required", entry) => family.required = words(Some(entry)),
            ("harmless", entry) => family.harmless.extend(words(Some(entry))),
            ("values", Value::Table(entry)) => family.values.extend(entry.clone()),
            (_, Value::Table(entry)) => {
                let known = family.properties.entry(key.clone()).or_default();
                if let Some(keys) = entry.get("key") {
                    known.keys = words(Some(keys));
                }
                known.default = entry.get("default").or(known.default.as_ref()).cloned();
                known.null = entry.get("null").or(known.null.as_ref()).cloned();
            }
            (_, fixed) => {
                let fixed = Property { default: Some(fixed.clone()), ..Property::default() };
                family.properties.insert(key.clone(), fixed);
            }
        }
    }
    for (property, default) in entries(&own, "defaults") {
        family.properties.entry(property).or_default().default = Some(default);
    }
    family.types = own.get("types").map_or_else(|| vec![name.to_string()], |types| words(Some(types)));
    family
}
