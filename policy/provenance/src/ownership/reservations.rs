//! Reservations belong to the institutions of the clusters that keep the GPUs: nobody else may withhold what they lend.

use std::collections::BTreeSet;

use comity_policy::Reservation;

use super::{Change, Owner, Requirement};
use crate::documents::{DocumentSpec, Documents};

impl Change<'_> {
    /// All donors before and after the change. One alone may take its own clusters out. A maintainer may do so for
    /// institutions that are removed, and end the reservation of a tenant that is.
    pub(super) fn of_reservation(&self, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> Requirement {
        let (old, new) = (reservation_of(old), reservation_of(new));
        let had = old.map(|old| donors(old, self.before)).unwrap_or_default();
        let has = new.map(|new| donors(new, self.after)).unwrap_or_default();
        let mut needed = self.signed_by_all(had.union(&has));
        let Some(old) = old else { return needed };
        let without_clusters_of = |gone: &dyn Fn(&str) -> bool| {
            let mut rest = old.clone();
            rest.clusters.retain(|cluster| !self.before.institution_of_donor(cluster).is_some_and(gone));
            (!rest.clusters.is_empty()).then_some(rest)
        };
        for donor in &had {
            if without_clusters_of(&|institution| institution == donor).as_ref() == new {
                needed = needed.or(self.owner(donor));
            }
        }
        let donor_is_gone = had.iter().any(|donor| self.is_gone(donor));
        let forgets_donors =
            donor_is_gone && without_clusters_of(&|institution| self.is_gone(institution)).as_ref() == new;
        let tenant_is_gone = self.before.institution_of_tenant(&old.tenant).is_some_and(|it| self.is_gone(it));
        if forgets_donors || (tenant_is_gone && new.is_none()) {
            needed = needed.or(Owner::Maintainers(1));
        }
        needed
    }

    /// The donors whose reservations follow a schedule: its windows say when they withhold GPUs.
    pub(super) fn donors_that_reserve_during(&self, schedule: &str) -> BTreeSet<Owner> {
        let following = self.after.reservations().filter(|reservation| reservation.during == schedule);
        let institutions: BTreeSet<String> = following.flat_map(|it| donors(it, self.after)).collect();
        institutions.iter().map(|institution| self.owner(institution)).collect()
    }

    fn signed_by_all<'n>(&self, institutions: impl Iterator<Item = &'n String>) -> Requirement {
        let owners: BTreeSet<Owner> = institutions.map(|institution| self.owner(institution)).collect();
        // A bundle that compiles names clusters with terms only.
        if owners.is_empty() {
            return Requirement::one(Owner::Maintainers(self.threshold()));
        }
        Requirement::all(owners)
    }
}

fn reservation_of(spec: Option<&DocumentSpec>) -> Option<&Reservation> {
    if let Some(DocumentSpec::Reservation(reservation)) = spec { Some(reservation) } else { None }
}

/// The institutions of a reservation's clusters.
fn donors(reservation: &Reservation, documents: &Documents) -> BTreeSet<String> {
    let institutions = reservation.clusters.iter().filter_map(|cluster| documents.institution_of_donor(cluster));
    institutions.map(str::to_owned).collect()
}
