//! `cohort`, `borrowingLimit` and `lendingLimit` of a quota.

use serde::Serialize;

use crate::amounts::show_gpus;
use crate::problem::{Place, ProblemCode};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// The place of a quota in a cohort, whose members lend each other what they do not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CohortMembership {
    /// `cohort`: the name that its members share.
    pub name: String,
    /// `borrowingLimit`: most GPUs above `maxConcurrentGpus`, in milli-GPU; `None` for all that the others lend.
    pub borrowing_limit_milli: Option<u64>,
    /// `lendingLimit`: most of `maxConcurrentGpus` that the others may use, in milli-GPU; `None` for all of it.
    pub lending_limit_milli: Option<u64>,
}

/// The fields as written.
pub(super) struct WrittenMembership<'n> {
    cohort: Option<(String, &'n Node)>,
    borrowing_limit: Option<(String, &'n Node)>,
    lending_limit: Option<(String, &'n Node)>,
}

impl<'n> WrittenMembership<'n> {
    pub(super) fn open(fields: &mut Fields<'n>, reader: &mut FieldReader<'_, '_>) -> Self {
        Self {
            cohort: fields.optional("cohort", reader),
            borrowing_limit: fields.optional("borrowingLimit", reader),
            lending_limit: fields.optional("lendingLimit", reader),
        }
    }

    /// The place of `cohort`; `None` without one.
    pub(super) fn place(&self) -> Option<Place> {
        self.cohort.as_ref().map(|(_, node)| node.place)
    }

    /// Reads the fields beside `maxConcurrentGpus`, if the quota has that.
    pub(super) fn read(
        self,
        nominal: Option<Option<u64>>,
        reader: &mut FieldReader<'_, '_>,
    ) -> Option<CohortMembership> {
        let lending_place = self.lending_limit.as_ref().map(|(_, node)| node.place);
        let limits = [self.borrowing_limit, self.lending_limit];
        if self.cohort.is_none() {
            for (path, node) in limits.iter().flatten() {
                let message = format!("`{path}` of {} is about a cohort, and the quota is in none", reader.label);
                let remedy = format!("add `cohort`, the name that the quotas share, or remove `{path}`");
                reader.problems.at(node.place, ProblemCode::MissingField, message, remedy);
            }
        }
        let [borrowing_limit_milli, lending_limit_milli] =
            limits.map(|limit| limit.and_then(|(path, node)| reader.gpus_milli(&path, node)));
        let (path, node) = self.cohort?;
        let name = reader.name(&path, node)?;
        if nominal.is_none() {
            let message = format!("{} is in cohort `{name}` and has no `maxConcurrentGpus`", reader.label);
            let remedy = "add `maxConcurrentGpus`, what it can always have; 0 if it only borrows";
            reader.problems.at(node.place, ProblemCode::MissingField, message, remedy);
        }
        if let (Some(lends), Some(nominal), Some(place)) = (lending_limit_milli, nominal.flatten(), lending_place)
            && lends > nominal
        {
            let (lends, nominal) = (show_gpus(lends), show_gpus(nominal));
            let message =
                format!("`lendingLimit: {lends}` of {} is above its `maxConcurrentGpus: {nominal}`", reader.label);
            let remedy = format!("write at most {nominal}, or remove it to lend all of them");
            reader.problems.at(place, ProblemCode::Contradiction, message, remedy);
        }
        Some(CohortMembership { name, borrowing_limit_milli, lending_limit_milli })
    }
}
