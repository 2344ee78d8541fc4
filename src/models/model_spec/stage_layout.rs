//! Text formats for the contents of pipeline stages: Megatron's `--pipeline-model-parallel-layout`, lists of its names, or
//! torchtitan's lists of modules.

use std::fmt;

/// Contents of one stage, in the model's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagePieces {
    /// Whether it has the embedding.
    pub embedding: bool,
    /// Number of layers.
    pub layers: usize,
    /// Number of layers that predict further tokens.
    pub predictions: usize,
    /// Whether it has the head and the loss.
    pub head: bool,
}

/// Stages in model order: with p devices, stage j is chunk j div p of device j mod p.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageLayout {
    /// By stage.
    pub stages: Vec<StagePieces>,
    /// Megatron's letters of the layers, if a hybrid pattern was read; bars are left out.
    pub letters: Option<String>,
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
    /// stages, `*k` and `(..)*k` repetitions), its hybrid pattern (M Mamba layer, `*` attention, E experts, - MLP, `|` between stages, `/` before
    /// each prediction), or a JSON list of stages with the names of Megatron or torchtitan.
    ///
    /// # Errors
    /// What was expected, and at which column.
    pub fn parse(text: &str) -> Result<StageLayout, LayoutError> {
        if text.contains('M') && text.chars().all(|letter| HYBRID.contains(letter) || matches!(letter, '|' | '/')) {
            return Ok(from_pattern(text));
        }
        let stages = if text.trim_start().starts_with('[') { from_json(text)? } else { from_letters(text)? };
        let layout = StageLayout { stages, letters: None };
        layout.check_ends()?;
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
            return Ok(StageLayout { stages: vec![whole], letters: None });
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
        Ok(StageLayout { stages: (0..stages).map(stage).collect(), letters: None })
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
                "expected a number of stages that is a multiple of `stages` {devices}, found {stages}; move a '|'"
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

    /// Checks a hybrid pattern against the `own` one of a model, if its layers have letters.
    ///
    /// # Errors
    /// Other letters, or a model whose layers have none.
    pub fn check_letters(&self, own: Option<&str>) -> Result<(), LayoutError> {
        let Some(found) = self.letters.as_deref().filter(|found| Some(*found) != own) else { return Ok(()) };
        let Some(own) = own else {
            return wrong(
                "expected stages as in Et*7|t*7L, found a hybrid pattern, for a model whose layers have no letters"
                    .to_string(),
            );
        };
        let place = own.chars().zip(found.chars()).take_while(|(own, found)| own == found).count();
        wrong(format!(
            "expected the model's hybrid pattern {own}, found another letter at layer {place}, or another length; correct it"
        ))
    }

    /// Checks that there is an embedding and a head.
    fn check_ends(&self) -> Result<(), LayoutError> {
        let has = |of: fn(&StagePieces) -> bool| self.stages.iter().any(of);
        let missing = match (has(|stage| stage.embedding), has(|stage| stage.head)) {
            (false, _) => "embedding, 'E', first",
            (_, false) => "head with the loss, 'L', last",
            _ => return Ok(()),
        };
        wrong(format!("expected one {missing}, found 0; add it"))
    }

    /// Returns Megatron's string without groups and repetitions, as in `Ettt|tttL`.
    pub fn flat(&self) -> String {
        let stage = |stage: &StagePieces| {
            let repeated = stage.counts().map(|(letter, count)| letter.to_string().repeat(count));
            repeated.concat()
        };
        self.stages.iter().map(stage).collect::<Vec<_>>().join("|")
    }

    /// Returns torchtitan's list of modules per stage (`module_fqns_per_model_part`); `None` with layers that predict further tokens,
    /// which it does not have.
    pub fn modules(&self) -> Option<Vec<Vec<String>>> {
        let mut next = 0;
        let stage = |stage: &StagePieces| {
            let layers = next..next + stage.layers;
            next = layers.end;
            let first = stage.embedding.then(|| "tok_embeddings".to_string());
            let last = if stage.head { &["norm", "lm_head"][..] } else { &[] };
            let layers = layers.map(|layer| format!("layers.{layer}"));
            first.into_iter().chain(layers).chain(last.iter().map(ToString::to_string)).collect()
        };
        let has_predictions = self.stages.iter().any(|stage| stage.predictions > 0);
        (!has_predictions).then(|| self.stages.iter().map(stage).collect())
    }
}

/// The letters in a model's order, with their meanings.
const ORDER: [(char, &str); 4] =
    [('E', "the embedding"), ('t', "layers"), ('m', "layers for multi-token prediction"), ('L', "the head")];

/// The stages that were read so far.
struct StagesSoFar {
    stages: Vec<StagePieces>,
    /// The last letter.
    last: Option<char>,
}

impl StagesSoFar {
    /// Adds a piece of kind `what` to the last stage.
    fn add(&mut self, what: char, place: &str) -> Result<(), LayoutError> {
        let rank = |letter: char| ORDER.iter().position(|(known, _)| *known == letter).unwrap_or(0);
        if let Some(last) = self.last {
            if last == what && matches!(what, 'E' | 'L')
                || rank(last) > rank('E') && what == 'E' && self.has_embedding()
            {
                return wrong(format!("{place}: expected one {what}, found a second; each model has one"));
            }
            if rank(last) > rank(what) {
                let [before, after] = [what, last].map(|letter| ORDER[rank(letter)].1);
                return wrong(format!("{place}: expected {before} before {after}, found it after; swap them"));
            }
        }
        self.last = Some(what);
        let Some(stage) = self.stages.last_mut() else { return Ok(()) };
        match what {
            'E' => stage.embedding = true,
            't' => stage.layers += 1,
            'm' => stage.predictions += 1,
            _ => stage.head = true,
        }
        Ok(())
    }

    fn has_embedding(&self) -> bool {
        self.stages.iter().any(|stage| stage.embedding)
    }
}

/// Letters of layers in Megatron's hybrid pattern.
const HYBRID: &str = "ME*-";

fn from_pattern(text: &str) -> StageLayout {
    let (main, predictions) =
        text.split_once('/').map_or((text, 0), |(main, rest)| (main, 1 + rest.matches('/').count()));
    let last = main.matches('|').count();
    let stage = |(number, layers): (usize, &str)| StagePieces {
        embedding: number == 0,
        layers: layers.len(),
        predictions: if number == last { predictions } else { 0 },
        head: number == last,
    };
    StageLayout { stages: main.split('|').enumerate().map(stage).collect(), letters: Some(text.replace('|', "")) }
}

fn from_letters(text: &str) -> Result<Vec<StagePieces>, LayoutError> {
    let letters: Vec<Letter> = text.chars().zip(1..).filter(|(letter, _)| *letter != ',').collect();
    let mut written = StagesSoFar { stages: vec![StagePieces::default()], last: None };
    for (letter, column) in repeat_letters(&repeat_groups(&letters)?)? {
        let place = format!("column {column}");
        match letter {
            '|' => written.stages.push(StagePieces::default()),
            'E' | 't' | 'm' | 'L' => written.add(letter, &place)?,
            '(' => return wrong(format!("{place}: '(' without ')*n'; groups do not nest")),
            ')' => return wrong(format!("{place}: ')' without '(' before and '*n' after it; groups do not nest")),
            '*' => {
                return wrong(format!(
                    "{place}: expected one '*n' after a letter or group, found another; multiply them"
                ));
            }
            other => {
                return wrong(format!("{place}: expected E, t, m, L, |, *n or (..)*n, found '{other}'; remove it"));
            }
        }
    }
    Ok(written.stages)
}

/// Reads a list of stages, each a list of names.
fn from_json(text: &str) -> Result<Vec<StagePieces>, LayoutError> {
    let expected =
        "expected a list of stages, each a list of names such as [[\"embedding\",\"decoder\"],[\"decoder\",\"loss\"]]";
    let stages: Vec<Vec<String>> = serde_json::from_str(text)
        .map_err(|error| LayoutError(format!("{expected}, found another value ({error})")))?;
    let mut found = StagesSoFar { stages: Vec::new(), last: None };
    let mut next = 0;
    for (number, names) in stages.iter().enumerate() {
        found.stages.push(StagePieces::default());
        let mut norm = false;
        for name in names {
            let place = format!("stage {number}");
            let layer = name.strip_prefix("layers.").and_then(|layer| layer.parse::<usize>().ok());
            match (name.as_str(), layer) {
                ("embedding" | "tok_embeddings", _) => found.add('E', &place)?,
                ("decoder", _) => found.add('t', &place)?,
                ("mtp", _) => found.add('m', &place)?,
                ("loss" | "lm_head" | "output", _) => found.add('L', &place)?,
                ("norm", _) => norm = true,
                (_, Some(layer)) if layer == next => {
                    next += 1;
                    found.add('t', &place)?;
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
        if norm && !found.stages.last().is_some_and(|stage| stage.head) {
            return wrong(format!(
                "stage {number}: expected norm in the stage of lm_head, found it alone; put them together"
            ));
        }
    }
    Ok(found.stages)
}

impl StagePieces {
    fn counts(&self) -> [(char, usize); 4] {
        [('E', usize::from(self.embedding)), ('t', self.layers), ('m', self.predictions), ('L', usize::from(self.head))]
    }

    fn letters(&self) -> String {
        let repeated = |(letter, count): (char, usize)| match count {
            0..4 => letter.to_string().repeat(count),
            _ => format!("{letter}*{count}"),
        };
        self.counts().map(repeated).concat()
    }
}

/// Megatron's string; three equal stages or more are a group.
impl fmt::Display for StageLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.stages.as_slice();
        while let Some(stage) = rest.first() {
            let letters = stage.letters();
            // the last stage has no bar
            let equal = rest[..rest.len() - 1].iter().take_while(|other| *other == stage).count();
            let grouped = if equal < 3 || letters.is_empty() { 1 } else { equal };
            rest = &rest[grouped..];
            let bar = if rest.is_empty() { "" } else { "|" };
            match grouped {
                1 => write!(f, "{letters}{bar}")?,
                _ => write!(f, "({letters}|)*{grouped}")?,
            }
        }
        Ok(())
    }
}
