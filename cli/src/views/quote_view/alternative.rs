//! Request templates named in place of a request that would wait.

use comity_proto::v1;
use serde::Serialize;

use crate::units::age;

/// A request template from which a request could start sooner.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alternative {
    /// Its name, for `--template`.
    pub template: String,
    /// Its name for people.
    pub title: String,
    /// Earliest start of a request from it.
    pub earliest_ms: u64,
    /// Donor of that start.
    pub donor: String,
}

impl From<v1::Alternative> for Alternative {
    fn from(alternative: v1::Alternative) -> Self {
        Self {
            template: alternative.template,
            title: alternative.title,
            earliest_ms: alternative.earliest_ms,
            donor: alternative.donor,
        }
    }
}

impl Alternative {
    /// For people: `--template notebook-small (Notebook, small) could start now at startup-pc`.
    pub(crate) fn summary(&self, now_ms: u64) -> String {
        let start = if self.earliest_ms <= now_ms { "now".to_owned() } else { age(self.earliest_ms, now_ms) };
        format!("--template {} ({}) could start {start} at {}", self.template, self.title, self.donor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_now_or_later() {
        let alternative = Alternative {
            template: "notebook-small".to_owned(),
            title: "Notebook, small".to_owned(),
            earliest_ms: 7_200_000,
            donor: "startup-pc".to_owned(),
        };
        let shown = "--template notebook-small (Notebook, small) could start now at startup-pc";
        assert_eq!(alternative.summary(7_200_000), shown);
        assert_eq!(alternative.summary(0), shown.replace("now", "in 2h"));
    }
}
