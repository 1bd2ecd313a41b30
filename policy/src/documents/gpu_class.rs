//! GpuClass: a named tier of GPUs.

use serde::Serialize;

use super::Spec;
use crate::amounts;
use crate::fields::{Context, Fields, shown};
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::selector::{Selector, parse_selector};
use crate::yaml::{Node, Value, place_within};

/// A tier of GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuClass {
    /// `description`: for people; may be empty.
    pub description: String,
    /// `selector`: which devices belong to it. CEL over `device`.
    pub selector: Selector,
    /// `rank`: the order of classes; a device that several classes select belongs to the one with the highest rank.
    pub rank: u32,
    /// `priceCredits`: milli-credits per GPU-hour.
    pub price_credits_milli_per_gpu_hour: u64,
}

impl Spec for GpuClass {
    const KIND: Kind = Kind::GpuClass;

    fn read(fields: &mut Fields<'_>, context: &mut Context<'_, '_>) -> Option<Self> {
        let description = fields.optional("description", context).and_then(|(path, node)| context.text(&path, node));
        let selector = fields.required("selector", context).and_then(|(path, node)| selector(context, &path, node));
        let rank = fields.required("rank", context).and_then(|(path, node)| context.number(&path, node, 0, 1_000_000));
        let price = fields.optional("priceCredits", context).and_then(|(path, node)| {
            context.amount(&path, node, ProblemCode::InvalidQuantity, amounts::parse_credits_milli)
        });
        Some(Self {
            description: description.unwrap_or_default(),
            selector: selector?,
            rank: u32::try_from(rank?).ok()?,
            price_credits_milli_per_gpu_hour: price.unwrap_or(0),
        })
    }
}

fn selector(context: &mut Context<'_, '_>, path: &str, node: &Node) -> Option<Selector> {
    let source = context.scalar(path, node)?;
    let Value::Scalar { byte_start, .. } = &node.value else {
        return None;
    };
    match parse_selector(source.trim_end()) {
        Ok(selector) => Some(selector),
        Err(faults) => {
            let text = context.problems.files().get(node.place.file).map_or("", |file| file.text.as_str());
            for fault in faults {
                let place = place_within(text, node.place, *byte_start, source, fault.at, fault.width);
                let message = format!("`{path}` of {}: {}", context.label, shown_sentence(&fault.message));
                context.problems.at(place, fault.code, message, fault.remedy);
            }
            None
        }
    }
}

/// A sentence of the checker, which may quote the selector.
fn shown_sentence(message: &str) -> String {
    if message.chars().count() > 160 { shown(message) } else { message.replace('\n', " ") }
}
