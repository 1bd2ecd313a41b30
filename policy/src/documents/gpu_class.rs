//! GpuClass: a named tier of GPUs.

use serde::Serialize;

use super::{Spec, When};
use crate::kind::Kind;
use crate::problem::shorten;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::{Node, Value, place_within};
use crate::selector::{Selector, parse_selector};

/// A tier of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuClass {
    /// `description`: for people; may be empty.
    pub description: String,
    /// `selector`: CEL expression over `device` that its devices satisfy.
    pub selector: Selector,
    /// `rank`: a device that several classes match belongs to the one with the highest rank.
    pub rank: u32,
    /// `priceCredits`: price in milli-credits per GPU-hour.
    pub price_credits_milli_per_gpu_hour: u64,
    /// `during` or `outside`: when it may be leased; `None` for always.
    pub when: Option<When>,
}

impl Spec for GpuClass {
    const KIND: Kind = Kind::GpuClass;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        let selector = fields.required("selector", reader).and_then(|(path, node)| read_selector(reader, &path, node));
        let rank = fields.required("rank", reader).and_then(|(path, node)| reader.number(&path, node, 0, 1_000_000));
        let price = fields.optional("priceCredits", reader).and_then(|(path, node)| reader.credits_milli(&path, node));
        let when = When::read(fields, reader);
        Some(Self {
            description: description.unwrap_or_default(),
            selector: selector?,
            rank: u32::try_from(rank?).ok()?,
            price_credits_milli_per_gpu_hour: price.unwrap_or(0),
            when,
        })
    }
}

fn read_selector(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<Selector> {
    let source = reader.scalar(path, node)?;
    let Value::Scalar { byte_start, .. } = &node.value else {
        return None;
    };
    match parse_selector(source.trim_end()) {
        Ok(selector) => Some(selector),
        Err(errors) => {
            let text = reader.problems.files().get(node.place.file).map_or("", |file| file.text.as_str());
            for error in errors {
                let place = place_within(text, node.place, *byte_start, source, error.at, error.width);
                let message = format!("`{path}` of {}: {}", reader.label, one_line(&error.message));
                reader.problems.at(place, error.code, message, error.remedy);
            }
            None
        }
    }
}

/// A message about a selector on one line; shortened if it is long, for it may quote the selector.
fn one_line(message: &str) -> String {
    if message.chars().count() > 160 { shorten(message) } else { message.replace('\n', " ") }
}
