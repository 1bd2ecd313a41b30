//! `gpus` of a template.

use serde::Serialize;

use crate::amounts::WHOLE_MILLI;
use crate::amounts::quantity::{milli_ceil, ones_ceil, plain_milli};
use crate::device::is_mig_profile;
use crate::documents::read_expression::read_expression;
use crate::expression::{Selector, parse_selector};
use crate::kind::Kind;
use crate::limits::{MAX_TEMPLATE_AMOUNT, MAX_TEMPLATE_SHARES, MIN_TEMPLATE_SHARE_MILLI};
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

const AMOUNT: &str = "^([1-9][0-9]*x)?[0-9]*\\.?[0-9]+m?$";
const MIG_PROFILE: &str = "^([1-9]c\\.)?[1-9]g\\.[1-9][0-9]{0,3}gb([+-][a-z]+(\\.[a-z]+)?)?$";

/// The GPUs of a template; of a gang, those of each member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateGpus {
    /// `class` or `selector`.
    pub devices: TemplateDevices,
    /// `amount`, `mig` and `memory`.
    pub amount: Option<TemplateAmount>,
    /// `isolation`: of each share from other work on its GPU.
    pub isolation: Option<TemplateIsolation>,
    /// `cpuPerGpu`: CPU per share, in thousandths of a core, above 0.
    pub cpu_milli_per_gpu: Option<u64>,
    /// `memoryPerGpu`: main memory per share, in MiB, above 0.
    pub memory_mib_per_gpu: Option<u64>,
}

/// The acceptable devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TemplateDevices {
    /// A GPU class of the bundle.
    Class(String),
    /// CEL over `device`.
    Selector(Selector),
}

/// A number of equal shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateAmount {
    /// Number of shares.
    pub count: u32,
    /// Each share.
    pub share: TemplateShare,
}

/// A share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TemplateShare {
    /// All of it.
    Whole,
    /// Thousandths of it, 50 to 999.
    Milli(u32),
    /// `mig`: a MIG profile.
    MigProfile(String),
    /// `memory`: device memory in MiB.
    MemoryMib(u64),
}

/// Isolation of a share from other work on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TemplateIsolation {
    /// Other work cannot take its memory.
    Memory,
    /// Memory, compute and faults are separate in hardware.
    Hardware,
}

impl TemplateGpus {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let devices = read_devices(&mut fields, reader);
        let amount = read_amount(&mut fields, reader);
        let isolation = fields.optional("isolation", reader).and_then(|(path, node)| {
            let words = [("memory", TemplateIsolation::Memory), ("hardware", TemplateIsolation::Hardware)];
            reader.word(&path, node, &words)
        });
        let cpu = fields.optional("cpuPerGpu", reader);
        let cpu = cpu.and_then(|(path, node)| positive(&path, node, milli_ceil, reader));
        let memory = fields.optional("memoryPerGpu", reader);
        let memory = memory.and_then(|(path, node)| positive(&path, node, mib_ceil, reader));
        fields.finish(reader);
        Some(Self { devices: devices?, amount: amount?, isolation, cpu_milli_per_gpu: cpu, memory_mib_per_gpu: memory })
    }
}

fn read_devices(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<TemplateDevices> {
    let (class, selector) = (fields.optional("class", reader), fields.optional("selector", reader));
    if class.is_none() && selector.is_none() {
        let message = format!("`{}` of {} names no GPUs", fields.path_of("class"), reader.label);
        reader.problems.at(fields.place(), ProblemCode::MissingField, message, "add `class:` or `selector:` here");
        return None;
    }
    if let (Some(_), Some((path, node))) = (&class, &selector) {
        let message = format!("`{path}` of {} is beside a `class`", reader.label);
        reader.problems.at(node.place, ProblemCode::Contradiction, message, "keep one of the two");
    }
    let class = class.and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::GpuClass)));
    let selector = selector.and_then(|(path, node)| {
        read_expression(reader, &path, node, |source| parse_selector(source).map(|selector| (selector, Vec::new())))
    });
    class.map(TemplateDevices::Class).or(selector.map(TemplateDevices::Selector))
}

/// `amount`, with `mig` or `memory` for the size of each share. `None` after a problem, `Some(None)` if it is left open.
#[expect(clippy::option_option, reason = "invalid and left open differ")]
fn read_amount(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Option<TemplateAmount>> {
    let amount_field = fields.optional("amount", reader);
    let (mig_field, memory_field) = (fields.optional("mig", reader), fields.optional("memory", reader));
    if let (Some(_), Some((path, node))) = (&mig_field, &memory_field) {
        let message = format!("`{path}` of {} is beside a `mig`", reader.label);
        reader.problems.at(node.place, ProblemCode::Contradiction, message, "keep one of the two");
        return None;
    }
    let amount = match &amount_field {
        Some((path, node)) => Some(parse_amount(path, node, reader)?),
        None => None,
    };
    let share = match (mig_field, memory_field) {
        (Some((path, node)), _) => Some(TemplateShare::MigProfile(mig_profile(&path, node, reader)?)),
        (None, Some((path, node))) => Some(TemplateShare::MemoryMib(positive(&path, node, mib_ceil, reader)?)),
        (None, None) => None,
    };
    let Some(share) = share else { return Some(amount) };
    let amount = amount.unwrap_or(TemplateAmount { count: 1, share: TemplateShare::Whole });
    if let (TemplateShare::Milli(_), Some((path, node))) = (&amount.share, amount_field) {
        let message =
            format!("`{path}` of {} has parts of GPUs, and another field sets the size of a share", reader.label);
        reader.problems.at(node.place, ProblemCode::Contradiction, message, "write a whole number of shares");
        return None;
    }
    Some(Some(TemplateAmount { count: amount.count, share }))
}

/// `3`, `0.25` or `4x0.25`.
fn parse_amount(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<TemplateAmount> {
    let text = reader.number_of_form(path, node, AMOUNT)?;
    let parsed = amount_of(text);
    if parsed.is_none() {
        let message = format!("`{path}: {}` of {} is not an amount of GPUs", shorten(text), reader.label);
        let remedy = format!(
            "write whole GPUs (3), a part of one (0.05 to 1), or equal parts (4x0.25); at most {MAX_TEMPLATE_SHARES}"
        );
        reader.problems.at(node.place, ProblemCode::InvalidQuantity, message, remedy);
    }
    parsed
}

fn amount_of(text: &str) -> Option<TemplateAmount> {
    let (times, each) = match text.split_once('x') {
        Some((times, each)) => (Some(times.parse::<u32>().ok()?), each),
        None => (None, text),
    };
    let milli = plain_milli(each)?;
    let (count, share) = match (times, milli) {
        (None, milli) if milli.is_multiple_of(WHOLE_MILLI) => {
            (u32::try_from(milli / WHOLE_MILLI).ok()?, TemplateShare::Whole)
        }
        (Some(times), WHOLE_MILLI) => (times, TemplateShare::Whole),
        (times, milli) if (u64::from(MIN_TEMPLATE_SHARE_MILLI)..WHOLE_MILLI).contains(&milli) => {
            (times.unwrap_or(1), TemplateShare::Milli(u32::try_from(milli).ok()?))
        }
        _ => return None,
    };
    (1..=MAX_TEMPLATE_SHARES).contains(&count).then_some(TemplateAmount { count, share })
}

fn mig_profile(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<String> {
    let text = reader.scalar_of_form(path, node, MIG_PROFILE)?;
    if is_mig_profile(text) {
        return Some(text.to_owned());
    }
    let message = format!("`{path}: {}` of {} is not a MIG profile", shorten(text), reader.label);
    let remedy = "use a name as nvidia-smi mig -lgip shows it, such as 1g.10gb or 1g.10gb+me";
    reader.problems.at(node.place, ProblemCode::InvalidValue, message, remedy);
    None
}

/// A quantity of MiB, rounded up.
pub(super) fn mib_ceil(text: &str) -> Option<u64> {
    ones_ceil(text).map(|bytes| bytes.div_ceil(1 << 20))
}

/// A quantity above zero and in the bounds of a request.
pub(super) fn positive(
    path: &str,
    node: &Node,
    parse: fn(&str) -> Option<u64>,
    reader: &mut FieldReader<'_, '_>,
) -> Option<u64> {
    let value = reader.quantity(path, node, parse)?;
    if (1..=MAX_TEMPLATE_AMOUNT).contains(&value) {
        return Some(value);
    }
    let text = reader.scalar(path, node).unwrap_or_default().to_owned();
    let message = format!("`{path}: {}` of {} is out of range", shorten(&text), reader.label);
    let remedy = if value == 0 { "write more than zero, or leave it out" } else { "write a smaller amount" };
    reader.problems.at(node.place, ProblemCode::InvalidQuantity, message, remedy);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_whole_gpus_a_part_of_one_or_equal_parts() {
        let whole = |count| Some(TemplateAmount { count, share: TemplateShare::Whole });
        let parts = |count, milli| Some(TemplateAmount { count, share: TemplateShare::Milli(milli) });
        for (text, expected) in [
            ("3", whole(3)),
            ("4x1", whole(4)),
            ("0.25", parts(1, 250)),
            ("250m", parts(1, 250)),
            ("4x0.25", parts(4, 250)),
            ("4096", whole(4_096)),
            ("4097", None),
            ("0", None),
            ("0x1", None),
            ("2.5", None),
            ("2x2", None),
            ("0.01", None),
            ("-1", None),
            ("many", None),
        ] {
            assert_eq!(amount_of(text), expected, "{text}");
        }
    }
}
