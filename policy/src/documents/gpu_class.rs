//! GpuClass: a named tier of GPUs.

use comity_types::LeaseTreatment;
use serde::Serialize;

use super::on_withdrawal::read_on_withdrawal;
use super::read_expression::read_expression;
use super::{Spec, When};
use crate::expression::{Selector, parse_selector};
use crate::kind::Kind;
use crate::reading::fields::{FieldReader, Fields};

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
    /// `onWithdrawal`: what becomes of its leases once the class is removed; drain by default.
    pub on_withdrawal: LeaseTreatment,
    /// `during` or `outside`: when it may be leased; `None` for always.
    pub when: Option<When>,
}

impl Spec for GpuClass {
    const KIND: Kind = Kind::GpuClass;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        let selector = fields.required("selector", reader).and_then(|(path, node)| {
            read_expression(reader, &path, node, |source| parse_selector(source).map(|selector| (selector, Vec::new())))
        });
        let rank = fields.required("rank", reader).and_then(|(path, node)| reader.number(&path, node, 0, 1_000_000));
        let price = fields.optional("priceCredits", reader).and_then(|(path, node)| reader.credits_milli(&path, node));
        let on_withdrawal = read_on_withdrawal(Self::KIND, fields, reader);
        let when = When::read(fields, reader);
        Some(Self {
            description: description.unwrap_or_default(),
            selector: selector?,
            rank: u32::try_from(rank?).ok()?,
            price_credits_milli_per_gpu_hour: price.unwrap_or(0),
            on_withdrawal,
            when,
        })
    }
}
