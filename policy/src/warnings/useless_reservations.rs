//! Warnings about reservations that their donors or tenants cannot make use of.

use crate::amounts::{show_gpus, show_time};
use crate::bundle::Bundle;
use crate::calendar::TimeSpan;
use crate::documents::{Cluster, Document, LendTerm, Reservation};
use crate::problem::{ProblemCode, Problems};

/// The windows of eight days in winter and in summer tell which overlap: from 2027-01-04 and from 2027-07-05, Mondays.
const SAMPLED_MS: [u64; 2] = [1_799_020_800_000, 1_814_745_600_000];
const SAMPLE_LENGTH_MS: u64 = 8 * 24 * 60 * 60 * 1_000;

impl Bundle {
    /// Reservations for tenants that may not borrow there, or of more than the donor ever lends.
    pub(super) fn warn_of_reservations(&self, found: &mut Problems<'_>) {
        for reservation in self.reservations.values() {
            for cluster in reservation.spec.clusters.iter().filter_map(|name| self.clusters.get(name)) {
                match self.obstacle_to_reserved(&reservation.spec, cluster) {
                    Some((message, remedy)) => found.at(
                        reservation.place_of("clusters"),
                        ProblemCode::ReservationOfNoUse,
                        format!("Reservation `{}` is of no use at `{}`: {message}", reservation.name, cluster.name),
                        remedy,
                    ),
                    None => {
                        let tenant = self.tenants.get(&reservation.spec.tenant);
                        let institution = tenant.map_or("", |tenant| tenant.spec.institution.as_str());
                        warn_of_amount(reservation, institution, cluster, found);
                    }
                }
            }
        }
        for cluster in self.clusters.values().filter(|cluster| self.has_reservations_at(&cluster.name)) {
            self.warn_of_sum(cluster, found);
        }
    }

    /// What keeps the tenant of a reservation from borrowing what a cluster keeps for it, and the remedy.
    fn obstacle_to_reserved(&self, spec: &Reservation, cluster: &Document<Cluster>) -> Option<(String, String)> {
        let tenant = self.tenants.get(&spec.tenant)?;
        let (name, class) = (&tenant.name, &spec.class);
        if !tenant.spec.classes.contains(class) {
            let message = format!("Tenant `{name}` may not request class `{class}`");
            return Some((message, format!("add `{class}` to `classes` of Tenant `{name}`, or name another class")));
        }
        if !tenant.spec.clusters.iter().any(|origin| *origin != cluster.name) {
            let message = format!("Tenant `{name}` sends no requests from any other cluster");
            return Some((message, format!("add another origin to `clusters` of Tenant `{name}`")));
        }
        if terms_for(spec, &tenant.spec.institution, cluster).next().is_none() {
            let message = format!("it does not lend `{class}` to Tenant `{name}`");
            return Some((message, format!("add a term to `lends` of Cluster `{}`", cluster.name)));
        }
        let (borrower, lender) = (&tenant.spec.institution, &cluster.spec.institution);
        let mut agreements = self.agreements.values();
        let agreed = borrower == lender
            || agreements.any(|it| it.spec.covers(borrower, lender) && it.spec.classes.contains(class));
        (!agreed).then(|| {
            let message = format!("no Agreement lets `{borrower}` borrow `{class}` from `{lender}`");
            (message, "add an Agreement between the two institutions".to_owned())
        })
    }

    /// Warns if the reservations of a cluster whose windows overlap hold more together than it ever lends.
    fn warn_of_sum(&self, cluster: &Document<Cluster>, found: &mut Problems<'_>) {
        let Some(most) = cluster.spec.max_lent_gpus_milli else { return };
        let all: Vec<&Document<Reservation>> = self.reservations_at(&cluster.name).collect();
        if all.len() < 2 {
            return;
        }
        for from_ms in SAMPLED_MS {
            let until_ms = from_ms + SAMPLE_LENGTH_MS;
            let spans: Vec<(&Document<Reservation>, TimeSpan)> = all
                .iter()
                .flat_map(|it| self.holding_spans(&it.spec, from_ms, until_ms).into_iter().map(move |span| (*it, span)))
                .collect();
            for (last, opened) in &spans {
                let open = |span: &TimeSpan| span.start_ms <= opened.start_ms && opened.start_ms < span.end_ms;
                let mut held: Vec<&Document<Reservation>> =
                    spans.iter().filter(|(_, span)| open(span)).map(|(it, _)| *it).collect();
                held.dedup_by_key(|it| &it.name);
                let sum = held.iter().fold(0_u64, |sum, it| sum.saturating_add(it.spec.gpus_milli));
                if sum > most && held.len() > 1 {
                    let names: Vec<String> = held.iter().map(|it| format!("`{}`", it.name)).collect();
                    found.at(
                        last.place_of("gpus"),
                        ProblemCode::ReservationTooLarge,
                        format!(
                            "Reservations {} hold {} GPUs at `{}` together, for example on {}, and its `maxLentGpus` \
                             is {}",
                            names.join(" and "),
                            show_gpus(sum),
                            cluster.name,
                            show_time(opened.start_ms),
                            show_gpus(most)
                        ),
                        "hold less, or let their windows not overlap; who asks first gets the GPUs",
                    );
                    return;
                }
            }
        }
    }
}

/// The lending terms that cover the tenant, of an institution, and the class of a reservation.
fn terms_for<'c>(
    spec: &'c Reservation,
    institution: &'c str,
    cluster: &'c Document<Cluster>,
) -> impl Iterator<Item = &'c LendTerm> {
    let covers = move |term: &&LendTerm| term.classes.contains(&spec.class) && term.covers(&spec.tenant, institution);
    cluster.spec.lends.iter().filter(covers)
}

/// Warns of a reservation that alone holds more than a cluster ever lends.
fn warn_of_amount(
    reservation: &Document<Reservation>,
    institution: &str,
    cluster: &Document<Cluster>,
    found: &mut Problems<'_>,
) {
    let spec = &reservation.spec;
    if let Some(most) = cluster.spec.max_lent_gpus_milli.filter(|most| *most < spec.gpus_milli) {
        found.at(
            reservation.place_of("gpus"),
            ProblemCode::ReservationTooLarge,
            format!(
                "`gpus: {}` of Reservation `{}` is more than the `maxLentGpus: {}` of Cluster `{}`",
                show_gpus(spec.gpus_milli),
                reservation.name,
                show_gpus(most),
                cluster.name
            ),
            format!("write at most {}, or raise `maxLentGpus`", show_gpus(most)),
        );
        return;
    }
    // Each term counts all leases that it covers, whichever term permitted them: terms do not add up.
    let most = terms_for(spec, institution, cluster).map(|term| term.max_gpus_milli.unwrap_or(u64::MAX));
    let most = most.max().unwrap_or(u64::MAX);
    if most < spec.gpus_milli {
        found.at(
            reservation.place_of("gpus"),
            ProblemCode::ReservationTooLarge,
            format!(
                "`gpus: {}` of Reservation `{}` is more than any term of Cluster `{}` lends to Tenant `{}`",
                show_gpus(spec.gpus_milli),
                reservation.name,
                cluster.name,
                spec.tenant
            ),
            format!("write at most {}, or raise `maxGpus` of a term", show_gpus(most)),
        );
    }
}
