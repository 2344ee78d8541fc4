//! Commands that start a program with a configuration.

use crate::config::document::{Document, Language};
use crate::config::framework::missing;
use crate::config::{bridge, deepspeed, nanotron, torchtitan};
use crate::error::JobError;
use crate::job::Job;
use crate::launch::Launch;
use crate::setting::Settings;
use crate::source::Sources;

/// Options of a command that are not overrides of its configuration.
const LAUNCHER: [&str; 9] = [
    "job.config_file",
    "job.config-file",
    "module",
    "config",
    "config-file",
    "config-path",
    "config-name",
    "deepspeed_config",
    "deepspeed",
];

/// Reads the job that a command starts; `None` if it starts something else.
///
/// # Errors
/// The command names a file that the sources lack, or as the framework's reader.
pub(crate) fn read(launch: &Launch, sources: &Sources) -> Result<Option<Job>, JobError> {
    let gpus = sources.gpus.or(launch.world);
    let option = |name: &str| launch.settings.value(name).map(str::to_string);
    let program = launch.program.rsplit('/').next().unwrap_or_default();
    let variable = |name: &str| (program == "run_train.sh").then(|| launch.environment.get(name).cloned()).flatten();
    let of_titan = |name: &str| name.starts_with("parallelism.") || name.starts_with("training.");
    let has_titans = program.is_empty() && launch.settings.0.iter().any(|one| of_titan(&one.name));
    let starts_titan = launch.program.contains("torchtitan") || program == "run_train.sh" || has_titans;
    let overrides = Settings(
        launch
            .settings
            .0
            .iter()
            .filter(|one| !LAUNCHER.iter().any(|name| crate::setting::same_name(name, &one.name)))
            .cloned()
            .collect(),
    );
    let (overrides, words) = with_modes(overrides, &launch.words);
    let with_overrides = |mut document: Document| {
        document.override_with(&overrides, &words)?;
        Ok::<_, JobError>(document)
    };
    if let Some(path) = option("job.config_file").or(variable("CONFIG_FILE")) {
        return torchtitan::read(with_overrides(open(&path, sources)?)?, gpus).map(Some);
    }
    if let (true, Some(module), Some(config)) =
        (starts_titan, option("module").or(variable("MODULE")), option("config").or(variable("CONFIG")))
    {
        let document = with_overrides(empty(launch))?;
        return torchtitan::registered(document, &module, &config, gpus).map(Some);
    }
    if starts_titan && launch.settings.0.iter().any(|one| one.name.starts_with("model.")) {
        return torchtitan::read(with_overrides(empty(launch))?, gpus).map(Some);
    }
    if has_titans {
        let why = "expected the model of torchtitan's options, found none; add --module and --config, or --model.name and --model.flavor";
        return Err(JobError::File { place: "command:1".to_string(), why: why.to_string() });
    }
    if let (Some(path), "run_train.py" | "run_train") = (option("config-file"), program) {
        return nanotron::read(with_overrides(open(&path, sources)?)?, gpus).map(Some);
    }
    if starts_bridge(launch, program) {
        let path = option("config-file")
            .or(option("config-name"))
            .map(|path| if path.contains('.') { path } else { format!("{path}.yaml") });
        let document = match path.filter(|path| sources.find(path).is_some() || option("config-file").is_some()) {
            Some(path) => open(&path, sources)?,
            None => match option("model_recipe_name").or(option("recipe")) {
                Some(recipe) => return Err(recipe_alone(launch, &recipe)),
                None => empty(launch),
            },
        };
        return bridge::read(with_overrides(document)?, gpus).map(Some);
    }
    let is_trainer = ["per_device_train_batch_size", "gradient_accumulation_steps"]
        .iter()
        .any(|name| launch.settings.get(name).is_some());
    let path = option("deepspeed_config").or(option("deepspeed").filter(|path| path.contains(".json")));
    let is_megatron = ["num-layers", "tensor-model-parallel-size", "micro-batch-size"]
        .iter()
        .any(|name| launch.settings.get(name).is_some());
    if is_megatron || !(is_trainer || path.is_some()) {
        return Ok(None);
    }
    let mut document = match path {
        Some(path) => open(&path, sources)?,
        None => empty(launch),
    };
    for word in launch.words.iter().filter(|word| word.ends_with(".yaml") || word.ends_with(".json")) {
        if let Some(file) = sources.find(word) {
            document.join(Document::parse(
                Language::of(&file.name, &file.text).unwrap_or(Language::Yaml),
                &file.name,
                &file.text,
            )?);
        }
    }
    deepspeed::read(with_overrides(document)?, gpus).map(Some)
}

/// Returns overrides and words of which each `activation_checkpoint:MODE`, as torchtitan's command line has it, is an override.
fn with_modes(mut overrides: Settings, words: &[String]) -> (Settings, Vec<String>) {
    const KIND: &str = "activation_checkpoint:";
    let mut words = words.to_vec();
    for setting in &mut overrides.0 {
        let (modes, values) = setting.values.drain(..).partition(|value: &String| value.starts_with(KIND));
        setting.values = values;
        words.extend::<Vec<String>>(modes);
    }
    words.iter_mut().for_each(|word| *word = word.replacen(KIND, "activation_checkpoint.mode=", 1));
    (overrides, words)
}

/// Whether a program is Megatron-Bridge's or NeMo's.
fn starts_bridge(launch: &Launch, program: &str) -> bool {
    let has_overrides = launch.words.iter().any(|word| {
        ["model.", "train.", "trainer."].iter().any(|start| word.trim_start_matches('+').starts_with(start))
    });
    launch.settings.get("model_recipe_name").is_some() || program == "run_recipe.py" || has_overrides
}

/// Returns the error of a recipe whose values only its Python code has.
fn recipe_alone(launch: &Launch, recipe: &str) -> JobError {
    let place = launch.settings.0.first().map_or("command:1", |one| one.place.as_str());
    let why = format!(
        "expected a configuration, found the name of a recipe, {recipe}, whose values are in its code; save them with \
         logger.save_config_filepath=job.yaml, and give that file"
    );
    JobError::File { place: place.to_string(), why }
}

fn empty(launch: &Launch) -> Document {
    let place = launch.settings.0.first().map_or("", |one| one.place.as_str());
    Document::empty(place.rsplit_once(':').map_or("command", |(name, _)| name))
}

fn open(path: &str, sources: &Sources) -> Result<Document, JobError> {
    let file = sources.find(path).ok_or_else(|| missing(path))?;
    let language = Language::of(&file.name, &file.text).or(Language::of(path, &file.text)).unwrap_or(Language::Yaml);
    Document::parse(language, &file.name, &file.text)
}
