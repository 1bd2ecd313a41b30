//! Where, when and at which price a request would be served.

mod alternative;

use comity_proto::v1;
use serde::Serialize;

use super::device::enforced_parts;
use super::donor_verdict::{DonorVerdict, donors_table};
use super::earliest_start::EarliestStart;
use super::placement::Placement;
use super::quota_use::{QuotaUse, quotas_table};
use super::reclaimed_leases::Reclaims;
use super::value::{non_empty, non_zero};
use crate::output::{Answer, Sheet, fields};
use crate::units::format_milli;

pub use alternative::Alternative;

/// Where, when and at which price a request would be served.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quote {
    /// Summary in one sentence.
    pub summary: String,
    /// The placement; for a gang over several donors, the first one.
    pub placement: Option<Placement>,
    /// The other placements of a gang over several donors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_placements: Vec<Placement>,
    /// Parts of the placements that donors enforce on every node: `devices`, `numa`; none without a placement.
    pub enforces: Option<Vec<&'static str>>,
    /// When it could start, behind the requests that already wait.
    pub earliest_ms: Option<u64>,
    /// Donor of that start.
    pub earliest_donor: Option<String>,
    /// Whether its start window closes before, so that it would fail.
    pub too_late: bool,
    /// Leases that would be reclaimed for it immediately.
    pub reclaims: Option<Reclaims>,
    /// Price of the whole term in thousandths of a credit; none without a placement.
    pub price_milli_credits: Option<u64>,
    /// Limits of quotas that it counts against.
    pub quotas: Vec<QuotaUse>,
    /// Without a placement: request templates from which a request could start sooner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// A verdict per donor.
    pub donors: Vec<DonorVerdict>,
}

impl From<v1::QuoteRequestResponse> for Quote {
    fn from(response: v1::QuoteRequestResponse) -> Self {
        Self {
            summary: response.summary,
            price_milli_credits: response.placement.is_some().then_some(response.price_milli_credits),
            enforces: response.placement.is_some().then(|| enforced_parts(response.enforces.unwrap_or_default())),
            placement: response.placement.map(Placement::from),
            more_placements: response.more_placements.into_iter().map(Placement::from).collect(),
            earliest_ms: non_zero(response.earliest_ms),
            earliest_donor: non_empty(response.earliest_donor),
            too_late: response.too_late,
            reclaims: response.reclaims.map(Reclaims::from),
            quotas: response.quotas.into_iter().map(QuotaUse::from).collect(),
            alternatives: response.alternatives.into_iter().map(Alternative::from).collect(),
            donors: response.donors.into_iter().map(DonorVerdict::from).collect(),
        }
    }
}

impl Quote {
    /// Whether pods get the devices of the placement.
    fn devices_text(&self) -> &'static str {
        match &self.enforces {
            None => "",
            Some(parts) if parts.contains(&"devices") => "enforced",
            Some(_) => "not enforced: the donor's cluster chooses the devices",
        }
    }
}

impl Answer for Quote {
    fn table(&self, now_ms: u64) -> Sheet {
        let placements: Vec<String> =
            self.placement.iter().chain(&self.more_placements).map(Placement::summary).collect();
        let placements = if placements.is_empty() { "nowhere now".to_owned() } else { placements.join("; ") };
        let earliest = EarliestStart {
            at_ms: self.earliest_ms,
            donor: self.earliest_donor.as_deref(),
            too_late: self.too_late,
            reclaims: self.reclaims.as_ref(),
        };
        let price = self.price_milli_credits.map(|price| format!("{} credits", format_milli(price)));
        let mut head = vec![
            ("Summary", self.summary.clone()),
            ("Placement", placements),
            ("Devices", self.devices_text().to_owned()),
            ("Earliest", earliest.text(now_ms)),
            ("Price", price.unwrap_or_else(|| "-".to_owned())),
        ];
        head.extend(self.reclaims.iter().map(|it| ("Reclaimed", it.summary(now_ms))));
        head.extend(self.alternatives.iter().map(|it| ("Instead", it.summary(now_ms))));
        let head = fields(&head);
        let head = if self.quotas.is_empty() { head } else { head.gap().then(quotas_table(&self.quotas)) };
        head.gap().then(donors_table(&self.donors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(donor: &str, count: u64) -> v1::Placement {
        v1::Placement {
            donor: donor.to_owned(),
            resource_name: "nvidia.com/gpu".to_owned(),
            resource_count: count,
            ..v1::Placement::default()
        }
    }

    #[test]
    fn a_start_after_the_window_is_reported_and_no_placement_means_no_price() {
        let response = v1::QuoteRequestResponse {
            earliest_ms: 7_200_000,
            earliest_donor: "north".to_owned(),
            too_late: true,
            ..v1::QuoteRequestResponse::default()
        };
        let quote = Quote::from(response.clone());
        let table = quote.table(0).to_string();
        assert!(table.contains("in 2h at north, after --start-by: the request fails first"), "{table}");
        assert!(table.contains("-\n") && !table.contains("credits"), "{table}");
        let json = serde_json::to_value(&quote).expect("plain data serialises");
        assert!(json["priceMilliCredits"].is_null() && json["tooLate"] == true, "{json}");
        assert!(!table.contains("Devices"), "{table}");
        // A free lease has a price: 0.
        let free = Quote::from(v1::QuoteRequestResponse { placement: Some(placement("north", 1)), ..response });
        assert_eq!(free.price_milli_credits, Some(0));
    }

    #[test]
    fn a_quote_tells_whether_pods_get_the_devices_of_the_placement() {
        let of = |enforces| {
            let response =
                v1::QuoteRequestResponse { placement: Some(placement("north", 2)), enforces, ..Default::default() };
            let quote = Quote::from(response);
            (quote.table(0).to_string(), serde_json::to_value(&quote).expect("plain data serialises"))
        };
        let (table, json) = of(None);
        assert!(table.contains("not enforced: the donor's cluster chooses the devices"), "{table}");
        assert_eq!(json["enforces"], serde_json::json!([]));
        let (table, json) = of(Some(v1::Enforcement { devices: true, numa: true }));
        assert!(table.contains("enforced\n") && !table.contains("kubelet"), "{table}");
        assert_eq!(json["enforces"], serde_json::json!(["devices", "numa"]));
    }

    #[test]
    fn a_quote_by_preemption_lists_reclaimed_leases_and_does_not_mention_renewals() {
        let reclaims = v1::Reclaims {
            donor: "north".to_owned(),
            gpus_milli: 1_000,
            until_ms: 600_000,
            leases: vec![v1::ReclaimedLease {
                gpus_milli: 1_000,
                notice_ms: 600_000,
                until_ms: 600_000,
                ..Default::default()
            }],
            ..v1::Reclaims::default()
        };
        let response = v1::QuoteRequestResponse {
            earliest_ms: 600_000,
            earliest_donor: "north".to_owned(),
            reclaims: Some(reclaims),
            ..v1::QuoteRequestResponse::default()
        };
        let table = Quote::from(response.clone()).table(0).to_string();
        assert!(table.contains("in 10m at north\n"), "{table}");
        assert!(table.contains("1 lease at north (1 GPUs) would be reclaimed with 10m of notice"), "{table}");
        let json = serde_json::to_value(Quote::from(response.clone())).expect("plain data serialises");
        assert_eq!((&json["reclaims"]["donor"], &json["reclaims"]["given"]), (&"north".into(), &false.into()));
        // Leases of another donor are not reclaimed, so they may be renewed.
        let elsewhere = v1::QuoteRequestResponse { earliest_donor: "south".to_owned(), ..response };
        let table = Quote::from(elsewhere).table(0).to_string();
        assert!(table.contains("in 10m at south, unless leases are renewed"), "{table}");
    }

    #[test]
    fn a_quote_shows_all_placements_of_a_gang_over_several_donors() {
        let quote = Quote::from(v1::QuoteRequestResponse {
            placement: Some(placement("north", 8)),
            more_placements: vec![placement("south", 2)],
            price_milli_credits: 20_000,
            ..v1::QuoteRequestResponse::default()
        });
        let table = quote.table(0).to_string();
        assert!(table.contains("8 nvidia.com/gpu on north") && table.contains("2 nvidia.com/gpu on south"), "{table}");
        let json = serde_json::to_value(&quote).expect("plain data serialises");
        assert_eq!(json["placement"]["donor"], "north");
        assert_eq!(json["morePlacements"][0]["donor"], "south");
        // Other quotes have no such key.
        let one = v1::QuoteRequestResponse { placement: Some(placement("north", 8)), ..Default::default() };
        let json = serde_json::to_value(Quote::from(one)).expect("plain data serialises");
        assert!(json.get("morePlacements").is_none(), "{json}");
    }
}
