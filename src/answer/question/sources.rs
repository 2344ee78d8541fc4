//! What a question names: models, hardware and training software, cost files and given costs.

use super::observer::Observer;
use super::remark::Remark;
use super::settings::Question;
use crate::resolve::{Costs, Error, Host, read_text, usage};
use pipesim_cost::{CostFile, GivenCosts, Slow, slow_devices, stage_times};
use pipesim_models::hardware::{self, Hardware, Stack};
use pipesim_models::model_spec::{
    self, StageLayout, StageSplit, huggingface, huggingface::Described, shape, transformer::Config,
};
use std::io;
use std::path::Path;

/// Finds a model by name, or reads its file or the text of a shape file, for `sequence` tokens per sequence.
///
/// # Errors
/// No such model, or a file that describes none.
pub fn model(name: &str, sequence: u32, host: &dyn Host, observer: &dyn Observer) -> Result<Config, Error> {
    if name.starts_with('{') {
        return shape::read(name, sequence as usize).map_err(|error| usage(format!("`model`: {error}")));
    }
    if !(name.ends_with(".json") || name.contains('/')) {
        return model_spec::transformer_named(name).ok_or_else(|| usage(model_spec::unknown(name)));
    }
    let named = |error: &dyn std::fmt::Display| usage(format!("{name}: {error}"));
    if let Some(last) = model_spec::of_hub(name)
        .filter(|_| host.read(name, 0).is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
    {
        return Err(usage(model_spec::unknown(last)));
    }
    let text = read_text(host, name, 16 << 20)?;
    if shape::is_shape(&text) {
        return shape::read(&text, sequence as usize).map_err(|error| named(&error));
    }
    let Described { config, unknown } = huggingface::read(&text).map_err(|error| named(&error))?;
    if !unknown.is_empty() {
        observer.remark(&Remark::UnknownKeys { file: name.to_string(), keys: unknown });
    }
    Ok(config)
}

/// Finds hardware by name or reads its file.
///
/// # Errors
/// No such hardware, or an invalid file.
pub fn hardware(name: &str, host: &dyn Host) -> Result<Hardware, Error> {
    if !hardware::kinds(name).map_err(usage)?.is_empty() {
        return Err(usage(format!(
            "`hardware`: expected one kind of GPU here, found {name}; name one: only predictions of a layout take several"
        )));
    }
    table(name, host, hardware::hardware, hardware::hardware_file)
}

/// Finds training software by name or reads its file.
///
/// # Errors
/// No such software, or an invalid file.
pub fn stack(name: &str, host: &dyn Host) -> Result<Stack, Error> {
    table(name, host, hardware::stack, |path, text, files| {
        hardware::stack_file(path, text, files, &pipesim_language::names())
    })
}

/// Finds a table by name, or reads its file and its bases next to it.
fn table<T>(
    name: &str,
    host: &dyn Host,
    named: fn(&str) -> Result<T, hardware::Error>,
    read: fn(&str, &str, hardware::Files<'_>) -> Result<T, hardware::Error>,
) -> Result<T, Error> {
    if !(name.ends_with(".toml") || name.contains('/')) {
        return named(name).map_err(usage);
    }
    let path = Path::new(name);
    let read_at = |path: &Path| read_text(host, &path.display().to_string(), 1 << 20);
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let text = read_at(path)?;
    let file = path.file_name().map_or_else(|| name.to_string(), |file| file.to_string_lossy().into_owned());
    let others = |base: &str| read_at(&folder.join(base)).map_err(|error| hardware::Error::File(error.to_string()));
    read(&file, &text, &others).map_err(usage)
}

/// Reads a cost file.
///
/// # Errors
/// A file that cannot be read or holds no costs.
pub fn cost_file(path: &str, host: &dyn Host) -> Result<CostFile, Error> {
    let text = read_text(host, path, 256 << 20)?;
    CostFile::from_json(&text).map_err(|error| usage(format!("{path}: {error}")))
}

/// Reads costs such as `F=1,I=1,W=1`, or a file of stage times.
///
/// # Errors
/// Nothing, unknown keys, or a file that holds no stage times.
pub fn given_costs(text: &str, host: &dyn Host) -> Result<GivenCosts, Error> {
    if text.trim().is_empty() {
        return Err(usage("expected F=..,I=..,W=.. or some of them; leave `costs` out for units"));
    }
    match stage_times::is_file(text) {
        true => stage_times::read(text, &read_text(host, text, 1 << 20)?).map_err(usage),
        false => text.parse().map_err(usage),
    }
}

impl Question {
    /// Returns the GPUs of every pipeline device: their kinds, slow ones, and slow links.
    ///
    /// # Errors
    /// No such hardware, or settings that cannot be read.
    pub(super) fn gpus_of_devices(&self, name: &str, host: &dyn Host) -> Result<Hardware, Error> {
        let kinds = hardware::kinds(name).map_err(usage)?;
        let kinds = kinds.into_iter().map(|(kind, count)| Ok((hardware(kind, host)?, count)));
        let kinds = kinds.collect::<Result<Vec<_>, Error>>()?;
        let mut gpus = Hardware::of_kinds(name, &kinds).map_or_else(|| hardware(name, host), Ok)?;
        self.slow_devices()?.into_iter().for_each(|(device, factor)| gpus.slow_device(device, factor.to_f64()));
        for text in &self.slow_link {
            gpus.slow_link(text.parse().map_err(|why| usage(format!("`slow-link`: {why}")))?);
        }
        Ok(gpus)
    }

    fn slow_devices(&self) -> Result<Slow, Error> {
        slow_devices(&self.straggler).map_err(|why| usage(format!("`straggler`: {why}")))
    }

    /// Returns the costs without a model on hardware: the costs in the cost file, else the given costs, else unit costs.
    ///
    /// # Errors
    /// An unreadable file, or settings that contradict each other.
    pub fn plain_costs(&self, host: &dyn Host) -> Result<Costs, Error> {
        let layers = Some(self.layers.clone()).filter(|layers| !layers.is_empty());
        if let Some(path) = &self.profile {
            return Ok(Costs::measured(cost_file(path, host)?, layers));
        }
        let given = self.costs.as_ref().map(|text| given_costs(text, host)).transpose()?.unwrap_or_default();
        let given = given.per(self.costs_per.unwrap_or_default()).with_layers(layers);
        if let (Some(per), true) = (self.costs_per, given.is_per_stage()) {
            return Err(usage(format!(
                "`costs-per` {}: `costs` are given for each stage; leave one of the two out",
                per.name()
            )));
        }
        Ok(Costs::Given { costs: Box::new(given), slow: self.slow_devices()? })
    }

    /// Returns the costs without a model on hardware, at the micro-batch size asked for.
    ///
    /// # Errors
    /// As [`Question::plain_costs`], or a size that the costs cannot have.
    pub fn costs(&self, host: &dyn Host, observer: &dyn Observer) -> Result<Costs, Error> {
        let costs = self.plain_costs(host)?;
        let Some(&sequences) = self.micro_batch_size.first() else { return Ok(costs) };
        if costs.is_staged() {
            return Err(usage(
                "`micro-batch-size`: the cost file has the times of stages at one micro-batch size, which is not known; leave it out, or \
                 measure a run with the other size",
            ));
        }
        if let Some((least, most)) = costs.measured_sequences().filter(|(a, b)| !(*a..=*b).contains(&sequences)) {
            observer.remark(&Remark::Scaled { sequences, measured: [least, most] });
        }
        Ok(costs.with_sequences(sequences))
    }

    /// Returns what each stage holds on the first number of devices, if that is asked for without a model on hardware.
    ///
    /// # Errors
    /// A split of a model that is not known, or that does not fit the devices.
    pub fn stage_layout(&self, host: &dyn Host) -> Result<Option<StageLayout>, Error> {
        let Some(asked) = &self.layout else { return Ok(None) };
        let wrong = |error: &dyn std::fmt::Display| usage(format!("`layout`: {error}"));
        let layers = match (asked, &self.profile) {
            (StageSplit::Stages(_), _) => 0,
            (StageSplit::Torchtitan(_), Some(path)) => cost_file(path, host)?.outline().layers(),
            (StageSplit::Torchtitan(_), None) => {
                let text = "torchtitan splits a known model; give it with `model` and `hardware` or `profile`, or write the stages, as in Et*7|t*7L";
                return Err(wrong(&text));
            }
        };
        let devices = self.devices();
        let layout = asked.stages(devices, self.chunks, layers).map_err(|error| wrong(&error))?;
        let [layers, predictions] = layout.layers();
        layout.check(devices, layers, predictions).map_err(|error| wrong(&error))?;
        Ok(Some(layout))
    }
}
