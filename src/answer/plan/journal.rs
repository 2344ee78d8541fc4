//! Results of a search for single layouts, as lines of text, from which an interrupted search continues.

use super::question::Question;
use super::reason::PlanError;
use crate::resolve::{Host, Variant, read_text, schedule_file};
use pipesim_language as dsl;
use pipesim_schedule::csv;
use std::collections::BTreeMap;

/// Result for one layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayoutOutcome {
    /// The schedule does not exist for the layout's numbers.
    Missing,
    /// The framework refuses it.
    Refused,
    /// Too many bytes: the fullest device needs at least these.
    TooLarge(u64),
    /// Bytes of the fullest device, and the iteration time in seconds.
    Predicted { bytes: u64, iteration_s: f64 },
}

impl LayoutOutcome {
    /// Returns the outcome within `bytes`; `None` if it is known under a smaller limit only.
    pub(super) fn within(self, bytes: u64) -> Option<LayoutOutcome> {
        match self {
            LayoutOutcome::TooLarge(used) if used <= bytes => None,
            LayoutOutcome::Predicted { bytes: used, .. } if used > bytes => Some(LayoutOutcome::TooLarge(used)),
            known => Some(known),
        }
    }
}

/// Outcomes by the number of the layout in its [`Space`](super::Space).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    pub outcomes: BTreeMap<u32, LayoutOutcome>,
}

impl Journal {
    /// Returns the first line of a question's journal, which differs for other questions, other contents of the files that they name, and
    /// other versions of this program.
    pub fn head(question: &Question) -> String {
        let text = |name: &str| text_of(question.host, name);
        let own: Vec<String> = question.schedules.iter().map(|name| text(name)).collect();
        let built_in: Vec<String> = dsl::names().into_iter().map(text).collect();
        // neither the outcomes nor the numbers of the layouts depend on it
        let asked = Question { keep: 0, ..question.clone() };
        let text = format!("{asked:?} {own:?} {built_in:?}");
        let (version, commit) = (env!("CARGO_PKG_VERSION"), pipesim_system::commit());
        format!("pipesim plan {version} {commit} {:016x}", hash(&text))
    }

    /// Returns the line of one outcome.
    pub fn line(number: u32, outcome: LayoutOutcome) -> String {
        match outcome {
            LayoutOutcome::Missing => format!("{number} missing"),
            LayoutOutcome::Refused => format!("{number} refused"),
            LayoutOutcome::TooLarge(bytes) => format!("{number} {bytes}"),
            // the bits, so that the answer is the same to the last digit
            LayoutOutcome::Predicted { bytes, iteration_s } => {
                format!("{number} {bytes} {:016x}", iteration_s.to_bits())
            }
        }
    }

    /// Reads a journal of `question`. A last line that was cut off is ignored.
    ///
    /// # Errors
    /// The journal is for another question, or the text is not a journal.
    pub fn read(question: &Question, text: &str) -> Result<Journal, PlanError> {
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole.lines();
        let head = Journal::head(question);
        if lines.next() != Some(&head) {
            let expected = "the journal of this question, of files with the same contents and by the same version";
            return Err(PlanError::new(expected, "another text", "name a new file"));
        }
        let mut journal = Journal::default();
        for (row, line) in lines.enumerate() {
            let expected = || format!("a layout on line {} of the journal", row + 2);
            let bad = || PlanError::new(expected(), "another text", "name a new file");
            let (number, outcome) = outcome(line).ok_or_else(bad)?;
            journal.outcomes.insert(number, outcome);
        }
        Ok(journal)
    }
}

/// Returns the text of a schedule, or why there is none: a search reports that.
fn text_of(host: &dyn Host, name: &str) -> String {
    let text = Variant::parse(name).and_then(|variant| match variant.is_csv() {
        true => read_text(host, &variant.base, csv::MAX_BYTES as u64),
        false => schedule_file(host, &variant.base).map(|file| file.text),
    });
    text.unwrap_or_else(|error| error.to_string())
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

fn outcome(line: &str) -> Option<(u32, LayoutOutcome)> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = words.first()?.parse().ok()?;
    let outcome = match words[1..] {
        ["missing"] => LayoutOutcome::Missing,
        ["refused"] => LayoutOutcome::Refused,
        [bytes] => LayoutOutcome::TooLarge(bytes.parse().ok()?),
        [bytes, bits] => {
            let iteration_s = f64::from_bits(u64::from_str_radix(bits, 16).ok()?);
            let bytes = bytes.parse().ok()?;
            Some(LayoutOutcome::Predicted { bytes, iteration_s })
                .filter(|_| iteration_s.is_finite() && iteration_s > 0.0)?
        }
        _ => return None,
    };
    Some((number, outcome))
}
