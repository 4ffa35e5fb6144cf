"""Order service: each accepted order is billed exactly once, whatever crashes. README.md says how to run it.

settings    environment variables
tables      orders and invoices; `python -m order_service.tables` creates them
orders      the use cases: place an order with its message, look an order up
app         FastAPI: POST /orders, GET /orders/{id}, /health, /metrics; runs a relay
billing     the consumer process: `python -m order_service.billing`
"""
