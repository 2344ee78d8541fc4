//! Text formats for the contents of pipeline stages: Megatron's `--pipeline-model-parallel-layout`, lists of its names, or
//! torchtitan's lists of modules.

use std::fmt;

/// Contents of one stage, in the model's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagePieces {
    pub embedding: bool,
    /// Number of layers.
    pub layers: usize,
    /// Number of layers that predict further tokens.
    pub predictions: usize,
    pub head: bool,
}

/// Stages in model order: with p devices, stage j is chunk j div p of device j mod p.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageLayout {
    pub stages: Vec<StagePieces>,
}

/// Why a text describes no stages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LayoutError(String);

fn wrong<T>(text: String) -> Result<T, LayoutError> {
    Err(LayoutError(text))
}

/// Largest number of letters after repetition.
const MOST_LETTERS: usize = 1 << 20;

/// A letter with its column in the text, from 1.
type Letter = (char, usize);

/// Replaces `(X)*k`, X without `)`, by k copies of X.
fn repeat_groups(letters: &[Letter]) -> Result<Vec<Letter>, LayoutError> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let rest = &letters[at..];
        let close = rest.iter().position(|(letter, _)| *letter == ')').filter(|&close| rest[0].0 == '(' && close > 1);
        match close.and_then(|close| Some((close, times(&rest[close + 1..])?))) {
            Some((close, (times, length))) => {
                append(&mut all, &rest[1..close], times)?;
                at += close + 1 + length;
            }
            None => {
                append(&mut all, &rest[..1], 1)?;
                at += 1;
            }
        }
    }
    Ok(all)
}

/// Replaces `c*k` by k copies of the letter c.
fn repeat_letters(letters: &[Letter]) -> Result<Vec<Letter>, LayoutError> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < letters.len() {
        let (times, length) = times(&letters[at + 1..]).unwrap_or((1, 0));
        append(&mut all, &letters[at..=at], times)?;
        at += 1 + length;
    }
    Ok(all)
}

/// Reads `*k`: the number, at most [`MOST_LETTERS`] + 1, and the letters that it takes.
fn times(letters: &[Letter]) -> Option<(usize, usize)> {
    let digits = letters.strip_prefix(&letters[..usize::from(letters.first()?.0 == '*')])?;
    let digits: Vec<usize> = digits.iter().map_while(|(digit, _)| Some(digit.to_digit(10)? as usize)).collect();
    let number = digits.iter().fold(0, |number, digit| (10 * number + digit).min(MOST_LETTERS + 1));
    (letters[0].0 == '*' && !digits.is_empty()).then_some((number, 1 + digits.len()))
}

fn append(all: &mut Vec<Letter>, letters: &[Letter], times: usize) -> Result<(), LayoutError> {
    if all.len() + letters.len().saturating_mul(times) > MOST_LETTERS {
        let column = letters.first().map_or(0, |letter| letter.1);
        return wrong(format!(
            "column {column}: expected at most {MOST_LETTERS} letters, found more; repeat fewer times"
        ));
    }
    (0..times).for_each(|_| all.extend_from_slice(letters));
    Ok(())
}

impl StageLayout {
    /// Reads Megatron's string (E embedding, t layer, m layer that predicts further tokens, L head and loss, `|` between
    /// stages, `*k` and `(..)*k` repetitions), or a JSON list of stages with the names of Megatron or torchtitan.
    ///
    /// # Errors
    /// What was expected, and at which column.
    pub fn parse(text: &str) -> Result<StageLayout, LayoutError> {
        let stages = if text.trim_start().starts_with('[') { from_json(text)? } else { from_letters(text)? };
        let layout = StageLayout { stages };
        layout.check_order()?;
        Ok(layout)
    }

    /// Returns torchtitan's automatic split of `layers` layers: the first and the last stage hold `first_less` and `last_less`
    /// layers fewer than the others, and the first stages one more if the rest does not divide.
    ///
    /// # Errors
    /// More stages than layers, counted with `first_less` and `last_less`, or ends without room for these.
    pub fn torchtitan(
        stages: usize,
        layers: usize,
        [first_less, last_less]: [usize; 2],
    ) -> Result<StageLayout, LayoutError> {
        let all = layers.saturating_add(first_less).saturating_add(last_less);
        if stages <= 1 {
            let whole = StagePieces { embedding: true, layers, predictions: 0, head: true };
            return Ok(StageLayout { stages: vec![whole] });
        }
        if stages > all {
            return wrong(format!(
                "expected at most {all} stages for torchtitan's split, found {stages}; choose fewer"
            ));
        }
        let (each, more) = (all / stages, all % stages);
        let ends = [("first", first_less), ("last", last_less)];
        if let Some((end, less)) = ends.into_iter().find(|&(_, less)| less > each) {
            return wrong(format!(
                "expected the {end} stage to have at most {each} layers less, the layers of each stage, found {less}; choose fewer stages"
            ));
        }
        let stage = |number: usize| {
            let (embedding, head) = (number == 0, number + 1 == stages);
            let less = if embedding { first_less } else { 0 } + if head { last_less } else { 0 };
            StagePieces { embedding, layers: each + usize::from(number < more) - less, predictions: 0, head }
        };
        Ok(StageLayout { stages: (0..stages).map(stage).collect() })
    }

    /// Returns the number of layers, and of those that predict further tokens.
    pub fn layers(&self) -> [usize; 2] {
        let sum = |of: fn(&StagePieces) -> usize| self.stages.iter().map(of).sum();
        [sum(|stage| stage.layers), sum(|stage| stage.predictions)]
    }

    /// Returns the stages per device.
    ///
    /// # Errors
    /// The devices do not divide the stages.
    pub fn chunks(&self, devices: u32) -> Result<u32, LayoutError> {
        let stages = self.stages.len();
        match u32::try_from(stages) {
            Ok(count) if devices > 0 && count.is_multiple_of(devices) && count > 0 => Ok(count / devices),
            _ => wrong(format!(
                "expected a number of stages that is a multiple of --stages {devices}, found {stages}; move a '|'"
            )),
        }
    }

    /// Checks the layout for a model with these layers on `devices` devices.
    ///
    /// # Errors
    /// Other numbers of layers, or layers that predict further tokens in several stages or not in their device's last one.
    pub fn check(&self, devices: u32, layers: usize, predictions: usize) -> Result<(), LayoutError> {
        self.chunks(devices)?;
        let [found, found_predictions] = self.layers();
        if found != layers {
            return wrong(format!("expected the model's {layers} layers, found {found} 't'; add or remove some"));
        }
        if found_predictions != predictions {
            return wrong(format!(
                "expected the model's {predictions} layers for multi-token prediction, found {found_predictions} 'm'; add or remove some"
            ));
        }
        let with: Vec<usize> = (0..self.stages.len()).filter(|&stage| self.stages[stage].predictions > 0).collect();
        match with.as_slice() {
            [] => Ok(()),
            [stage] if stage + devices as usize >= self.stages.len() => Ok(()),
            [stage] => wrong(format!(
                "expected 'm' in the last stage of its device, found it in stage {stage} of {}; move it back",
                self.stages.len()
            )),
            _ => wrong(format!("expected all 'm' in one stage, found them in {}; put them together", with.len())),
        }
    }

    /// Checks that embedding, layers, predicting layers and head follow each other.
    fn check_order(&self) -> Result<(), LayoutError> {
        let places: Vec<(usize, &str)> = self.stages.iter().flat_map(|stage| stage.places()).collect();
        let count = |name: &str| places.iter().filter(|(_, found)| *found == name).count();
        for (name, what) in [(EMBEDDING, "embedding, 'E'"), (LOSS, "head with the loss, 'L'")] {
            if count(name) != 1 {
                return wrong(format!("expected one {what}, found {}; each model has one", count(name)));
            }
        }
        let mut before: (usize, &str) = (0, "");
        for &place in &places {
            if place.0 < before.0 {
                return wrong(format!("expected {} before {}, found it after; swap them", place.1, before.1));
            }
            before = place;
        }
        Ok(())
    }
}

const EMBEDDING: &str = "the embedding";
const LOSS: &str = "the head";

impl StagePieces {
    /// Returns its pieces with their rank in a model.
    fn places(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let pieces = [
            (usize::from(self.embedding), (0, EMBEDDING)),
            (self.layers.min(1), (1, "layers")),
            (self.predictions.min(1), (2, "layers for multi-token prediction")),
            (usize::from(self.head), (3, LOSS)),
        ];
        pieces.into_iter().filter(|(count, _)| *count > 0).map(|(_, place)| place)
    }

    /// Adds a piece of kind `what` at the end.
    fn add(&mut self, what: char, place: &str) -> Result<(), LayoutError> {
        let later = match what {
            'E' => self.embedding || self.layers > 0 || self.predictions > 0 || self.head,
            't' => self.predictions > 0 || self.head,
            _ => self.head,
        };
        if later {
            return wrong(format!(
                "{place}: expected the order E, t, m, L in a stage, found {}; move it",
                if what == 'E' && self.embedding { "a second E".to_string() } else { format!("{what} too late") }
            ));
        }
        match what {
            'E' => self.embedding = true,
            't' => self.layers += 1,
            'm' => self.predictions += 1,
            _ => self.head = true,
        }
        Ok(())
    }
}

fn from_letters(text: &str) -> Result<Vec<StagePieces>, LayoutError> {
    let letters: Vec<Letter> = text.chars().zip(1..).filter(|(letter, _)| *letter != ',').collect();
    let mut stages = vec![StagePieces::default()];
    for (letter, column) in repeat_letters(&repeat_groups(&letters)?)? {
        let place = format!("column {column}");
        match (letter, stages.last_mut()) {
            ('|', _) => stages.push(StagePieces::default()),
            ('E' | 't' | 'm' | 'L', Some(stage)) => stage.add(letter, &place)?,
            ('(', _) => return wrong(format!("{place}: '(' without ')*n'; groups do not nest")),
            (')', _) => return wrong(format!("{place}: ')' without '(' before and '*n' after it; groups do not nest")),
            ('*', _) => {
                return wrong(format!(
                    "{place}: expected one '*n' after a letter or group, found another; multiply them"
                ));
            }
            (other, _) => {
                return wrong(format!("{place}: expected E, t, m, L, |, *n or (..)*n, found '{other}'; remove it"));
            }
        }
    }
    Ok(stages)
}

/// Reads a list of stages, each a list of names.
fn from_json(text: &str) -> Result<Vec<StagePieces>, LayoutError> {
    let expected =
        "expected a list of stages, each a list of names such as [[\"embedding\",\"decoder\"],[\"decoder\",\"loss\"]]";
    let stages: Vec<Vec<String>> = serde_json::from_str(text)
        .map_err(|error| LayoutError(format!("{expected}, found another value ({error})")))?;
    let (mut found, mut next) = (Vec::new(), 0);
    for (number, names) in stages.iter().enumerate() {
        let mut stage = StagePieces::default();
        let mut norm = false;
        for name in names {
            let place = format!("stage {number}");
            let layer = name.strip_prefix("layers.").and_then(|layer| layer.parse::<usize>().ok());
            match (name.as_str(), layer) {
                ("embedding" | "tok_embeddings", _) => stage.add('E', &place)?,
                ("decoder", _) => stage.add('t', &place)?,
                ("mtp", _) => stage.add('m', &place)?,
                ("loss" | "lm_head" | "output", _) => stage.add('L', &place)?,
                ("norm", _) => norm = true,
                (_, Some(layer)) if layer == next => {
                    next += 1;
                    stage.add('t', &place)?;
                }
                (_, Some(layer)) => {
                    return wrong(format!(
                        "{place}: expected layers.{next} next, found layers.{layer}; list layers in order"
                    ));
                }
                (other, _) => {
                    return wrong(format!(
                        "{place}: expected embedding, decoder, mtp and loss, or torchtitan's tok_embeddings, layers.0, norm and lm_head, \
                         found '{other}'; correct it"
                    ));
                }
            }
        }
        if norm && !stage.head {
            return wrong(format!(
                "stage {number}: expected norm in the stage of lm_head, found it alone; put them together"
            ));
        }
        found.push(stage);
    }
    Ok(found)
}

/// Megatron's string.
impl fmt::Display for StageLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, stage) in self.stages.iter().enumerate() {
            f.write_str(if number > 0 { "|" } else { "" })?;
            let letters = [
                ('E', usize::from(stage.embedding)),
                ('t', stage.layers),
                ('m', stage.predictions),
                ('L', usize::from(stage.head)),
            ];
            for (letter, count) in letters {
                match count {
                    0 => {}
                    1..4 => f.write_str(&letter.to_string().repeat(count))?,
                    _ => write!(f, "{letter}*{count}")?,
                }
            }
        }
        Ok(())
    }
}
