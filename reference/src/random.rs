//! Random data that every rank of every world computes for itself.

/// A number of [-1, 1) that depends on nothing but seed, tensor, row and column: the same in every world, in any order.
///
/// The generator is a counter: the finaliser of splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014), applied once for each coordinate to the hash so far plus that coordinate, from
///
/// ```text
/// h = mix(seed); h = mix(h + tensor + 1); h = mix(h + row + 1); h = mix(h + col + 1)
/// ```
///
/// where `+` wraps and `mix` first adds the golden ratio, as splitmix64 does. The upper 24 bits of `h`, a signed number,
/// over 2^23 are the result, so every result is exact in f32.
///
/// ```
/// let x = reference::uniform(7, 0, 3, 5);
/// assert_eq!(x, reference::uniform(7, 0, 3, 5));
/// assert!((-1.0..1.0).contains(&x));
/// ```
pub fn uniform(seed: u64, tensor: u64, row: u64, col: u64) -> f32 {
    value(row_hash(seed, tensor, row), col)
}

/// [`uniform`] for `rows` rows from `row` and `cols` columns from `col`, row-major.
pub fn uniform_block(seed: u64, tensor: u64, [row, col]: [u64; 2], [rows, cols]: [u64; 2]) -> Vec<f32> {
    let mut block = Vec::with_capacity((rows * cols) as usize);
    for r in row..row + rows {
        let hash = row_hash(seed, tensor, r);
        block.extend((col..col + cols).map(|c| value(hash, c)));
    }
    block
}

fn row_hash(seed: u64, tensor: u64, row: u64) -> u64 {
    next(next(mix(seed), tensor), row)
}

fn value(row_hash: u64, col: u64) -> f32 {
    let upper = (next(row_hash, col) as i64) >> 40;
    upper as f32 / (1 << 23) as f32
}

fn next(hash: u64, coordinate: u64) -> u64 {
    mix(hash.wrapping_add(coordinate).wrapping_add(1))
}

/// One step of splitmix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first outputs of splitmix64 with seed 1234567, as published with its C implementation's users.
    #[test]
    fn the_hash_is_splitmix64() {
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567u64.wrapping_add(0x9e37_79b9_7f4a_7c15)), 3_203_168_211_198_807_973);
    }
}
