//! Cost of staging in money: devices are paid once, energy for every run (Fig. 3a and Table 5).

use super::staging::whole_devices;
use crate::units::{Joules, Money, MoneyPerJoule};

/// Returns the price of devices or analysis nodes at a staging ratio (Fig. 3a): only whole devices or nodes are bought.
pub fn infrastructure(nodes: f64, ratio: f64, price: Money) -> Money {
    price * whole_devices(nodes, ratio)
}

/// Returns the price of the energy of `runs` runs (Table 5); negative when staging saves energy.
pub fn energy_bill(energy: Joules, runs: f64, price: MoneyPerJoule) -> Money {
    price * (energy * runs)
}

/// Returns the total of Table 5. The rows of Table 5 at ratios 30 and 300 charge only the share of the infrastructure for the feasible
/// applications, so this share is a parameter; 1 charges the whole infrastructure.
pub fn total(infrastructure: Money, share: f64, energy_bill: Money) -> Money {
    infrastructure * share + energy_bill
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Price;

    #[test]
    fn staging_costs_match_hand_computation() {
        assert_eq!(
            infrastructure(18_000.0, 10.0, Money::new(1010.0)),
            Money::new(1_818_000.0)
        );
        assert_eq!(
            infrastructure(18_000.0, 470.7, Money::new(1010.0)),
            Money::new(39_390.0)
        );
        let price: Price<MoneyPerJoule> = "$0.30/kWh".parse().unwrap();
        let bill = energy_bill(Joules::new(3.6e6), 146.0, price.amount);
        assert!((bill.get() - 43.8).abs() < 1e-9);
        assert_eq!(
            total(Money::new(606_000.0), 0.8, Money::new(158_193.0)),
            Money::new(642_993.0)
        );
    }
}
