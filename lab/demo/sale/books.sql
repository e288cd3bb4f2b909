-- What the database says about goods, carts and money, in the order of the fields of Books. One
-- statement, and so one moment.
WITH promised AS (
	SELECT l.sku, sum(l.units) FILTER (WHERE c.state = 'RESERVED') AS reserved, sum(l.units) FILTER (WHERE c.state = 'SOLD') AS sold
	FROM cart_lines l JOIN carts c ON c.id = l.cart_id GROUP BY l.sku
), shelf AS (
	SELECT s.start, s.remaining, coalesce(p.reserved, 0) AS reserved, coalesce(p.sold, 0) AS sold
	FROM stock s LEFT JOIN promised p USING (sku)
), asked AS (
	SELECT c.state, c.lines > (SELECT count(*) FROM cart_lines l WHERE l.cart_id = c.id) AS half FROM carts c
), money AS (
	SELECT b.state AS bank, c.state AS cart, b.cents = c.cents AS same
	FROM bank.charges b FULL JOIN carts c ON c.id = b.key
)
SELECT goods.*, kept.*, taken.*, open.* FROM (
	SELECT sum(start), sum(remaining), sum(reserved), sum(sold),
	       sum(greatest(0, sold + reserved - start)),
	       sum(greatest(0, sold + reserved + remaining - start)),
	       sum(greatest(0, start - sold - reserved - remaining)) FROM shelf
) AS goods, (
	SELECT count(*), count(*) FILTER (WHERE state = 'SOLD'), count(*) FILTER (WHERE state = 'EXPIRED'), count(*) FILTER (WHERE half) FROM asked
) AS kept, (
	SELECT (SELECT count(*) FROM payments), count(*) FILTER (WHERE bank = 'CHARGED'), count(*) FILTER (WHERE bank IN ('REFUNDED', 'VOID')),
	       count(*) FILTER (WHERE (bank = 'CHARGED' OR cart = 'SOLD') AND (bank = 'CHARGED' AND cart = 'SOLD' AND same) IS NOT TRUE) FROM money
) AS taken, (
	SELECT (SELECT count(*) FROM carts WHERE state = 'RESERVED') + (SELECT count(*) FROM payments WHERE state = 'REFUND_DUE')
) AS open
