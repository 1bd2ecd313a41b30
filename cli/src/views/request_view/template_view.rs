//! Request templates: entries of the catalogue.

use comity_proto::v1;
use serde::Serialize;

use crate::output::Column;
use crate::units::format_duration;
use crate::views::list::Row;
use crate::views::spec::RequestSpec;
use crate::views::value::non_empty;

/// A request template.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestTemplate {
    /// Its name, for `--template`.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// What it is good for.
    pub description: Option<String>,
    /// The part of the catalogue that it belongs to.
    pub category: Option<String>,
    /// The fields that it sets; those that it leaves open are empty, 0 or `null`.
    pub spec: RequestSpec,
    /// Fields that a request may set to another value, by their paths in a request file.
    pub may_override: Vec<String>,
    /// Your tenants that are offered it, at most 32.
    pub tenants: Vec<String>,
}

impl From<v1::RequestTemplate> for RequestTemplate {
    fn from(template: v1::RequestTemplate) -> Self {
        Self {
            name: template.name,
            title: template.title,
            description: non_empty(template.description),
            category: non_empty(template.category),
            spec: template.spec.into(),
            may_override: template.may_override,
            tenants: template.tenants,
        }
    }
}

impl Row for RequestTemplate {
    const HEADS: &'static [Column] = &[
        Column::text("template"),
        Column::text("title"),
        Column::text("category").rank(5),
        Column::text("gpus"),
        Column::text("duration").rank(1),
        Column::text("may override").rank(3),
        Column::text("tenants").rank(4),
        Column::message("description").rank(2),
    ];
    const NONE: &'static str = "no request templates are offered to your tenants";

    fn key(&self) -> &str {
        &self.name
    }

    fn rows(&self, _now_ms: u64) -> Vec<Vec<String>> {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let duration = self.spec.duration_ms;
        let gpus = if self.spec.gpus.count == 0 {
            format!("any number of {}", self.spec.gpus.class.as_deref().unwrap_or("(selector)"))
        } else {
            self.spec.gpus_summary()
        };
        vec![vec![
            self.name.clone(),
            self.title.clone(),
            or_dash(self.category.clone().unwrap_or_default()),
            gpus,
            if duration == 0 { "-".to_owned() } else { format_duration(duration) },
            or_dash(self.may_override.join(", ")),
            self.tenants.join(", "),
            self.description.clone().unwrap_or_default(),
        ]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_is_set_and_what_may_be_overridden() {
        let kind = Some(v1::share::Kind::MigProfile("1g.10gb".to_owned()));
        let gpus = v1::GpuDemand {
            class: "midrange".to_owned(),
            share: Some(v1::Share { kind }),
            count: 1,
            ..v1::GpuDemand::default()
        };
        let template = v1::RequestTemplate {
            name: "notebook-small".to_owned(),
            title: "Notebook, small".to_owned(),
            spec: Some(v1::RequestSpec { gpus: Some(gpus), duration_ms: 7_200_000, ..v1::RequestSpec::default() }),
            may_override: vec!["duration".to_owned()],
            tenants: vec!["poly-ml".to_owned()],
            ..v1::RequestTemplate::default()
        };
        let row = RequestTemplate::from(template.clone()).rows(0).remove(0);
        let expected =
            ["notebook-small", "Notebook, small", "-", "1x1g.10gb midrange", "2h", "duration", "poly-ml", ""];
        assert_eq!(row, expected);
        let mut open = template;
        let spec = open.spec.as_mut().expect("set");
        let gpus = v1::GpuDemand { class: "midrange".to_owned(), ..v1::GpuDemand::default() };
        (spec.gpus, spec.duration_ms) = (Some(gpus), 0);
        let row = RequestTemplate::from(open).rows(0).remove(0);
        assert_eq!((row[3].as_str(), row[4].as_str()), ("any number of midrange", "-"));
    }
}
