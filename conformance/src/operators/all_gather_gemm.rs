//! `AllGatherGemm`: A by rows and B by columns, on every rank; C by columns.

use crate::case::{Case, Epoch};
use crate::config::Config;
use crate::context::Context;
use crate::expect::Expected;
use crate::handlers::product;
use crate::network::Network;
use crate::value::{draw, part};
use mk_compute::AllGatherGemm;
use mk_core::{Bindings, DType, Rank, Rect, Tensor};

/// The branches of [`generate`], besides the worlds.
const BRANCHES: [&str; 6] = [
    "no rows",
    "a rank without rows",
    "a rank without columns",
    "shards of different sizes",
    "several row blocks of a rank",
    "NaN in the data",
];

/// Nodes, ranks, and what connects the nodes.
type World = (u64, u64, Network);

const WORLDS: [(World, &str); 10] = [
    ((1, 1, Network::Mapped), "worlds of 1"),
    ((1, 2, Network::Mapped), "worlds of 2"),
    ((1, 3, Network::Mapped), "worlds of 3"),
    ((1, 5, Network::Mapped), "worlds of 5"),
    ((1, 6, Network::Mapped), "worlds of 6"),
    ((1, 8, Network::Mapped), "worlds of 8"),
    ((2, 2, Network::Unordered), "2 nodes of 1"),
    ((2, 4, Network::Ordered), "2 nodes of 2"),
    ((3, 6, Network::Unordered), "3 nodes of 2"),
    ((2, 6, Network::Unordered), "2 nodes of 3"),
];

/// Lanes of a rank: of eight ranks that share one GPU, all are resident on its 132 SMs.
const LANES: u16 = 16;

fn worlds(config: Config) -> Vec<(World, &'static str)> {
    WORLDS.into_iter().filter(|((_, _, network), _)| config.networks.contains(network)).collect()
}

/// The branches that [`generate`] must take.
pub(crate) fn branches(config: Config) -> Vec<&'static str> {
    worlds(config).into_iter().map(|(_, branch)| branch).chain(BRANCHES).collect()
}

/// A random shape, its edges among them.
pub(crate) fn generate(c: &mut Context) -> Result<Case, String> {
    let (world, branch) = c.random.pick(&worlds(c.config));
    c.note(branch, true);
    let m = if c.random.one_in(2) { c.random.pick(&[0, 1, 127, 129, 257]) } else { c.random.below(200) };
    let n = if c.random.one_in(2) { c.random.pick(&[8, 264]) } else { 8 * c.random.range(1, 20) };
    let k = if c.random.one_in(2) { c.random.pick(&[8, 64, 192, 320]) } else { 8 * c.random.range(1, 20) };
    let dtype = c.random.pick(&[DType::Bf16, DType::F16]);
    case(c, world, [m, n, k], dtype, 2)
}

const ROWS: [u64; 4] = [1, 127, 129, 257];
const COLS: [u64; 3] = [8, 264, 6288];
const SUMS: [u64; 4] = [8, 64, 192, 320];
const TYPES: [DType; 2] = [DType::Bf16, DType::F16];
const SHAPE_WORLDS: [World; 5] = [
    (1, 1, Network::Mapped),
    (1, 2, Network::Mapped),
    (1, 3, Network::Mapped),
    (1, 4, Network::Mapped),
    (2, 4, Network::Unordered),
];

/// How many shapes [`shape`] has.
pub(crate) const SHAPES: usize = ROWS.len() * COLS.len() * SUMS.len() * TYPES.len();

/// One of the shapes that were silently wrong elsewhere, in every world.
pub(crate) fn shape(
    c: &mut Context,
    i: usize,
    run: &dyn Fn(Case) -> Result<(), String>,
) -> Result<(), String> {
    let (m, rest) = (ROWS[i % ROWS.len()], i / ROWS.len());
    let (n, rest) = (COLS[rest % COLS.len()], rest / COLS.len());
    let (k, dtype) = (SUMS[rest % SUMS.len()], TYPES[rest / SUMS.len()]);
    let products = [Product::draw(c, [m, n, k], dtype)];
    let worlds = SHAPE_WORLDS.into_iter().filter(|(_, _, network)| c.config.networks.contains(network));
    for world in worlds {
        run(with_data(world, AllGatherGemm::new(m, n, k, dtype), &products)?)?;
    }
    Ok(())
}

/// So many runs of one shape.
pub(crate) fn case(
    c: &mut Context,
    world: World,
    [m, n, k]: [u64; 3],
    dtype: DType,
    epochs: usize,
) -> Result<Case, String> {
    let products: Vec<Product> = (0..epochs).map(|_| Product::draw(c, [m, n, k], dtype)).collect();
    let op = AllGatherGemm::new(m, n, k, dtype);
    note(c, &op, world.1 as u32, m);
    with_data(world, op, &products)
}

/// What is multiplied, and what must come of it.
pub(crate) struct Product {
    a: Tensor,
    b: Tensor,
    c: Expected,
}

impl Product {
    pub(crate) fn new(config: Config, a: Tensor, b: Tensor) -> Product {
        let ([m, k, n], dtype) = ([a.rows, a.cols, b.cols], a.dtype);
        let mut c = Expected::new(Tensor::zeros(dtype, m, n));
        c.results(Rect::new(0, 0, m, n), &product(config, [m, n, k], &a, &b, dtype));
        Product { a, b, c }
    }

    fn draw(c: &mut Context, [m, n, k]: [u64; 3], dtype: DType) -> Product {
        let [a, b] = [[m, k], [k, n]].map(|size| {
            let mut data = draw(c.config.numerics, dtype, size, 3, &mut c.random);
            c.plant_nan(&mut data);
            data
        });
        Product::new(c.config, a, b)
    }

    /// Every rank is given its shards of A and B, and must give back its columns of C.
    fn epoch(&self, op: &AllGatherGemm, world: u32) -> Epoch {
        let mut epoch = Epoch { given: Bindings::new(), want: Default::default() };
        let (m, k) = (self.a.rows, self.a.cols);
        for r in 0..world {
            let (rows, cols, rank) = (op.rows(world, r), op.cols(world, r), Rank(r as u16));
            let (height, width) = (rows.end - rows.start, cols.end - cols.start);
            epoch.given.set(rank, AllGatherGemm::A, part(&self.a, Rect::new(rows.start, 0, height, k)));
            epoch.given.set(rank, AllGatherGemm::B, part(&self.b, Rect::new(0, cols.start, k, width)));
            let mut want = Expected::new(Tensor::zeros(self.a.dtype, m, width));
            self.c.copy_to(Rect::new(0, cols.start, m, width), &mut want, Rect::new(0, 0, m, width));
            epoch.want.insert((rank, AllGatherGemm::C.to_string()), want);
        }
        epoch
    }
}

/// One run for each product.
pub(crate) fn with_data(world: World, op: AllGatherGemm, products: &[Product]) -> Result<Case, String> {
    let (nodes, ranks, network) = world;
    let name = format!("{op} on {ranks} ranks of {nodes} nodes ({network:?})");
    // A NIC for each rank, where there is more than one node.
    let nics = if nodes == 1 { 0 } else { ranks / nodes };
    let registry = network.registry(nodes, ranks, nics as u32).map_err(|e| e.to_string())?;
    let program = op.clone().lanes(LANES).plan(&registry).map_err(|e| format!("{name}: {e}"))?;
    let epochs = products.iter().map(|p| p.epoch(&op, ranks as u32)).collect();
    Case::new(name, &registry, program, epochs)
}

fn note(c: &mut Context, op: &AllGatherGemm, world: u32, m: u64) {
    let len = |r: std::ops::Range<u64>| r.end - r.start;
    let rows: Vec<u64> = (0..world).map(|r| len(op.rows(world, r))).collect();
    let cols: Vec<u64> = (0..world).map(|r| len(op.cols(world, r))).collect();
    c.note("no rows", m == 0);
    c.note("a rank without rows", m > 0 && rows.contains(&0));
    c.note("a rank without columns", cols.contains(&0));
    c.note("shards of different sizes", rows.windows(2).chain(cols.windows(2)).any(|w| w[0] != w[1]));
    c.note("several row blocks of a rank", rows.iter().any(|r| *r > 128));
}
