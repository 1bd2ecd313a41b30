//! Checks of settings: every invalid value is collected, so that one start reports all of them.

use comity_types::printable_line;

/// A value that a setting cannot have, or a setting without a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", self.problem())]
pub struct InvalidSetting {
    /// The field's path, as in "burst.maxGpus".
    pub field: &'static str,
    /// The refused value; empty if there is none.
    pub value: String,
    /// Why it is refused, and what to write instead.
    pub reason: String,
}

impl InvalidSetting {
    /// Refuses a value of a field. The reason becomes one line: it may quote other names of the configuration.
    pub fn new(field: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Self { field, value: value.to_string(), reason: printable_line(&reason.into()).into_owned() }
    }

    /// The field and its value, as in `burst.maxGpus "0" is refused`.
    #[must_use]
    pub fn problem(&self) -> String {
        let Self { field, value, .. } = self;
        if value.is_empty() { format!("{field} is missing") } else { format!("{field} {value:?} is refused") }
    }
}

/// All invalid values of a configuration; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; also "))]
pub struct InvalidSettings(pub Vec<InvalidSetting>);

impl From<InvalidSetting> for InvalidSettings {
    fn from(invalid: InvalidSetting) -> Self {
        Self(vec![invalid])
    }
}

/// Collects invalid values, in the order in which they were found.
#[derive(Debug, Default)]
pub struct SettingChecks {
    invalid: Vec<InvalidSetting>,
}

impl SettingChecks {
    /// Records a value that the field cannot have.
    pub fn refuse(&mut self, field: &'static str, value: impl ToString, reason: impl Into<String>) {
        self.invalid.push(InvalidSetting::new(field, value, reason));
    }

    /// Records the error of a section that stops at its first invalid value.
    pub fn take(&mut self, checked: Result<(), InvalidSetting>) {
        self.invalid.extend(checked.err());
    }

    /// Ends the checks.
    ///
    /// # Errors
    /// [`InvalidSettings`] if any value was refused.
    pub fn finish(self) -> Result<(), InvalidSettings> {
        if self.invalid.is_empty() { Ok(()) } else { Err(InvalidSettings(self.invalid)) }
    }
}
