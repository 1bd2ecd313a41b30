//! Which pods hold which device, as the kubelets report it.
//!
//! ```text
//! kubelet ─▶ comity-agent read-devices ─▶ page ─▶ DevicePages ─▶ observe: DeviceTable
//!  socket        on each node             HTTP      this agent      joined with pods, leases and claims
//! ```

mod device_page;
mod device_scraper;
mod device_table;
mod device_use;

pub(crate) use device_page::DevicePage;
pub use device_page::PageTooLarge;
pub(crate) use device_scraper::follow;
pub use device_scraper::{DevicePages, ReadPage};
pub use device_table::{DeviceConflict, DeviceCounts, DeviceTable, ReaderCounts};
pub use device_use::{DeviceHolder, DeviceUse, HolderOwner};
