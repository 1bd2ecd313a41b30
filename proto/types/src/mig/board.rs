//! Boards, instance shapes, and profile names.

use crate::mig::slots::Slots;

/// A whole device, in thousandths.
const WHOLE_MILLI: u32 = 1_000;

/// Largest number of shapes of any board.
pub const MAX_SHAPES: usize = 7;

/// A shape of MIG instances.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceShape {
    /// Compute slices: the number before the "g".
    pub compute: u8,
    /// Memory slots.
    pub size: u8,
    /// Slots at which an instance may start. The first is the least obstructive one once all larger instances are
    /// placed.
    pub starts: &'static [u8],
    /// Whether it takes the media extension ("+me"), which only one instance per device can have.
    pub media: bool,
}

const fn shape(compute: u8, size: u8, starts: &'static [u8]) -> InstanceShape {
    InstanceShape { compute, size, starts, media: false }
}

const fn media_shape(compute: u8, size: u8, starts: &'static [u8]) -> InstanceShape {
    InstanceShape { compute, size, starts, media: true }
}

/// A100, H100, H200, B200 and related boards: eight memory slots, seven compute slices. Only three shapes reach the
/// last slot. 3g tries slot 4 first: 4g can start only at 0, and whatever fits in the upper half fits in the lower
/// half. Source: `nvidia-smi mig -lgipp` on A100, H100 80GB and H100 NVL; MIG User Guide for the others.
const EIGHT_SLOTS: &[InstanceShape] = &[
    shape(7, 8, &[0]),
    shape(4, 4, &[0]),
    shape(3, 4, &[4, 0]),
    shape(2, 2, &[4, 0, 2]),
    shape(1, 2, &[6, 4, 0, 2]),
    shape(1, 1, &[6, 4, 5, 0, 1, 2, 3]),
    media_shape(1, 1, &[6, 4, 5, 0, 1, 2, 3]),
];

/// A30: four memory slots, four compute slices. Source: MIG User Guide, A30.
const FOUR_SLOTS: &[InstanceShape] = &[
    shape(4, 4, &[0]),
    shape(2, 2, &[0, 2]),
    media_shape(2, 2, &[0, 2]),
    shape(1, 1, &[0, 1, 2, 3]),
    media_shape(1, 1, &[0, 1, 2, 3]),
];

/// Words in product names, and the memory sizes of these boards in GiB, rounded up. RTX PRO boards also support MIG,
/// but their start slots are unpublished, so their instances are lent as reported.
const BOARDS: &[(&str, &[u32], &[InstanceShape])] = &[
    ("A30", &[24], FOUR_SLOTS),
    ("A100", &[40, 80], EIGHT_SLOTS),
    ("H100", &[80, 94, 96], EIGHT_SLOTS),
    ("H800", &[80, 94], EIGHT_SLOTS),
    ("H20", &[96], EIGHT_SLOTS),
    ("GH200", &[96], EIGHT_SLOTS),
    ("H200", &[141], EIGHT_SLOTS),
    ("B200", &[180], EIGHT_SLOTS),
    ("GB200", &[186], EIGHT_SLOTS),
    ("B300", &[269], EIGHT_SLOTS),
    ("GB300", &[278], EIGHT_SLOTS),
];

/// Tenths of its slots' share of the board's memory that an instance certainly has. The driver's overhead varies by
/// board and profile but stays below the remaining tenth.
const GUARANTEED_TENTHS: u64 = 9;

/// The MIG geometry of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Board {
    shapes: &'static [InstanceShape],
    slots: u8,
    /// Memory in GiB, rounded up.
    gib: u32,
}

impl Board {
    /// The board of a product with this memory in MiB; `None` if its geometry is unknown. The product name of a GH200
    /// states the CPU's memory, so the device's memory decides.
    #[must_use]
    pub fn of(product_name: &str, memory_mib: u64) -> Option<Self> {
        let gib = u32::try_from(memory_mib.div_ceil(1_024)).ok()?;
        let mut words = product_name.split(|c: char| !c.is_ascii_alphanumeric());
        let (_, sizes, shapes) = words.find_map(|word| BOARDS.iter().find(|(name, _, _)| *name == word))?;
        // Drivers reserve some memory: a device up to a GiB below the board's size is still that board.
        let gib = *sizes.iter().find(|&&size| size == gib || size == gib + 1)?;
        let slots = shapes.iter().map(|shape| shape.size).max()?;
        Some(Self { shapes, slots, gib })
    }

    /// The shapes of its instances, largest first.
    #[must_use]
    pub fn shapes(self) -> &'static [InstanceShape] {
        self.shapes
    }

    /// Memory slots.
    #[must_use]
    pub fn slots(self) -> u8 {
        self.slots
    }

    /// Thousandths of the device that an instance counts for: its fraction of the slots.
    #[must_use]
    pub fn milli(self, shape: &InstanceShape) -> u32 {
        WHOLE_MILLI * u32::from(shape.size) / u32::from(self.slots)
    }

    /// The profile name of a shape on this board, as in "3g.40gb". The memory is the board's memory times the shape's
    /// fraction of the slots, in GiB, rounded. Source: go-nvlib, from which the device plugin and GPU Feature Discovery
    /// take names.
    #[must_use]
    pub fn name(self, shape: &InstanceShape) -> String {
        let media = if shape.media { "+me" } else { "" };
        format!("{}g.{}gb{media}", shape.compute, self.gigabytes(shape))
    }

    fn gigabytes(self, shape: &InstanceShape) -> u32 {
        let slots = u32::from(self.slots);
        (2 * self.gib * u32::from(shape.size) + slots) / (2 * slots)
    }

    /// The shape that `profile` names, and its index. Rounding makes the names of similar boards differ by one
    /// ("7g.79gb", "7g.80gb"); both are accepted.
    #[must_use]
    pub fn shape(self, profile: &str) -> Option<(usize, &'static InstanceShape)> {
        let (plain, media) = profile.strip_suffix("+me").map_or((profile, false), |plain| (plain, true));
        let (compute, memory) = plain.strip_suffix("gb")?.split_once("g.")?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok())?;
        let (compute, memory) = (number(compute)?, number(memory)?);
        self.shapes
            .iter()
            .enumerate()
            .filter(|(_, shape)| u32::from(shape.compute) == compute && shape.media == media)
            .map(|(at, shape)| (self.gigabytes(shape).abs_diff(memory), at, shape))
            .filter(|(off, _, _)| *off <= 1)
            .min()
            .map(|(_, at, shape)| (at, shape))
    }

    /// The smallest shape that certainly has `wanted` MiB on a device of `memory_mib`: fewest slots, then fewest
    /// compute slices, never with the media extension.
    #[must_use]
    pub fn shape_with_memory(self, memory_mib: u64, wanted: u64) -> Option<(usize, &'static InstanceShape)> {
        let sure =
            |shape: &InstanceShape| memory_mib * u64::from(shape.size) / u64::from(self.slots) * GUARANTEED_TENTHS / 10;
        let fitting = self.shapes.iter().enumerate().filter(|(_, shape)| !shape.media && sure(shape) >= wanted);
        fitting.min_by_key(|(_, shape)| (shape.size, shape.compute))
    }

    /// Names of all shapes, largest first.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        self.shapes.iter().map(|shape| self.name(shape)).collect()
    }
}

impl InstanceShape {
    /// The slots of an instance that starts at `start`; `None` if none may start there.
    #[must_use]
    pub fn at(&self, start: u8) -> Option<Slots> {
        self.starts.contains(&start).then(|| Slots::span(start, self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Product, reported MiB, and the driver's profile names.
    const KNOWN: &[(&str, u64, &str)] = &[
        ("NVIDIA-A30", 24_576, "4g.24gb 2g.12gb 2g.12gb+me 1g.6gb 1g.6gb+me"),
        ("NVIDIA-A100-SXM4-40GB", 40_960, "7g.40gb 4g.20gb 3g.20gb 2g.10gb 1g.10gb 1g.5gb 1g.5gb+me"),
        ("NVIDIA-A100-SXM4-80GB", 81_920, "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb 1g.10gb+me"),
        ("NVIDIA-H100-80GB-HBM3", 81_559, "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb 1g.10gb+me"),
        ("NVIDIA H100 NVL", 95_830, "7g.94gb 4g.47gb 3g.47gb 2g.24gb 1g.24gb 1g.12gb 1g.12gb+me"),
        ("NVIDIA-GH200-480GB", 97_871, "7g.96gb 4g.48gb 3g.48gb 2g.24gb 1g.24gb 1g.12gb 1g.12gb+me"),
        ("NVIDIA-H200", 143_771, "7g.141gb 4g.71gb 3g.71gb 2g.35gb 1g.35gb 1g.18gb 1g.18gb+me"),
        ("NVIDIA-B200", 183_359, "7g.180gb 4g.90gb 3g.90gb 2g.45gb 1g.45gb 1g.23gb 1g.23gb+me"),
        ("NVIDIA-GB200", 189_471, "7g.186gb 4g.93gb 3g.93gb 2g.47gb 1g.47gb 1g.23gb 1g.23gb+me"),
        ("NVIDIA-B300-SXM6-AC", 275_040, "7g.269gb 4g.135gb 3g.135gb 2g.67gb 1g.67gb 1g.34gb 1g.34gb+me"),
        ("NVIDIA-GB300", 284_208, "7g.278gb 4g.139gb 3g.139gb 2g.70gb 1g.70gb 1g.35gb 1g.35gb+me"),
    ];

    fn board(product: &str, memory_mib: u64) -> Board {
        Board::of(product, memory_mib).unwrap_or_else(|| panic!("{product} of {memory_mib} MiB"))
    }

    #[test]
    fn names_match_the_drivers() {
        for (product, memory_mib, names) in KNOWN {
            let board = board(product, *memory_mib);
            assert_eq!(board.names().join(" "), *names, "{product}");
            for (at, shape) in board.shapes().iter().enumerate() {
                assert_eq!(board.shape(&board.name(shape)).map(|(at, _)| at), Some(at), "{product}");
            }
        }
    }

    #[test]
    fn a_name_means_something_only_on_its_board() {
        let sizes = |product, memory_mib, name: &str| {
            board(product, memory_mib).shape(name).map(|(_, shape)| (shape.compute, shape.size))
        };
        assert_eq!(sizes("NVIDIA-A100-SXM4-40GB", 40_960, "1g.10gb"), Some((1, 2)));
        assert_eq!(sizes("NVIDIA-A100-SXM4-80GB", 81_920, "1g.10gb"), Some((1, 1)));
        assert_eq!(sizes("NVIDIA-H200", 143_771, "1g.35gb"), Some((1, 2)));
        assert_eq!(sizes("NVIDIA-GB300", 284_208, "1g.35gb"), Some((1, 1)));
        assert_eq!(sizes("NVIDIA-A100-SXM4-80GB", 81_920, "7g.79gb"), Some((7, 8)));
        for other in ["3g.20gb", "1g.10gb.me", "1c.3g.40gb", "g.gb", "+1g.10gb", "1g.10gb+me.all", "", "8g.80gb"] {
            assert_eq!(sizes("NVIDIA-A100-SXM4-80GB", 81_920, other), None, "{other}");
        }
    }

    #[test]
    fn unknown_boards_have_no_geometry() {
        for (product, memory_mib) in [
            ("NVIDIA-L40S", 46_068),
            ("NVIDIA-H100-80GB-HBM3", 9_856),
            ("NVIDIA-RTX-PRO-6000-Blackwell", 97_887),
            ("NVIDIA-A100X", 81_920),
            ("NVIDIA-H200", u64::MAX),
        ] {
            assert_eq!(Board::of(product, memory_mib), None, "{product}");
        }
    }

    #[test]
    fn memory_gets_the_smallest_sufficient_shape() {
        let served = |product, memory_mib, wanted| {
            let board = board(product, memory_mib);
            board.shape_with_memory(memory_mib, wanted).map(|(_, shape)| board.name(shape))
        };
        assert_eq!(served("NVIDIA-H100-80GB-HBM3", 81_559, 8_192).as_deref(), Some("1g.10gb"));
        assert_eq!(served("NVIDIA-H100-80GB-HBM3", 81_559, 10_240).as_deref(), Some("1g.20gb"));
        assert_eq!(served("NVIDIA-H100-80GB-HBM3", 81_559, 20_480).as_deref(), Some("3g.40gb"));
        assert_eq!(served("NVIDIA-H100-80GB-HBM3", 81_559, 73_000).as_deref(), Some("7g.80gb"));
        assert_eq!(served("NVIDIA-H100-80GB-HBM3", 81_559, 81_559), None);
        // An instance of 1g on an A30 has 5,836 MiB, of 2g 11,672.
        assert_eq!(served("NVIDIA-A30", 24_576, 5_500).as_deref(), Some("1g.6gb"));
        assert_eq!(served("NVIDIA-A30", 24_576, 11_000).as_deref(), Some("2g.12gb"));
    }

    #[test]
    fn shares_never_exceed_the_device() {
        for (product, memory_mib, _) in KNOWN {
            let board = board(product, *memory_mib);
            for shape in board.shapes() {
                let slots = shape.starts.iter().map(|&start| Slots::span(start, shape.size));
                assert!(
                    slots.clone().all(|slots| slots.count() == u32::from(shape.size)),
                    "{shape:?} leaves the board"
                );
                assert_eq!(
                    slots.fold(0, |sum, slots| sum + slots.count()),
                    slots_of(shape),
                    "starts of {shape:?} overlap"
                );
                assert_eq!(board.milli(shape) * u32::from(board.slots()), 1_000 * u32::from(shape.size));
            }
        }
    }

    fn slots_of(shape: &InstanceShape) -> u32 {
        shape.starts.iter().fold(Slots::NONE, |all, &start| all.with(Slots::span(start, shape.size))).count()
    }
}
