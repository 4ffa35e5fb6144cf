"""The console: a cluster in a browser, as pages rendered by the server, and its JSON API.

    config        what a console is started with
    console       the parts of a console
    server        its HTTP server
    collector     one snapshot of the cluster for all pages, within a budget of requests
    broker_state  settings, users, policies, and delayed and half messages of a broker, for the collector
    measurements  values of single topics and groups, measured when a page shows them
    database      SQLite files in threads of their own
    history       samples of series, in three resolutions
    charts        the history as rows of tables, which a script draws
    audit         actions, recorded before they run, with their results
    views         pages with names, for all accounts
    accounts      accounts of visitors: passwords, sessions, proxies
    body_policy   accounts that may see the bodies of messages
    actions       runs the commands of the catalogue for an account; the only place that does
    scans         searches through messages, which run while pages look at them
    json_results  results of commands as JSON
    lake          the tables of the lake, and queries within limits
    reliable_outbox  the outbox in a database
    tails         the newest messages of topics as they come, for pages that stay open
    bodies        bodies of messages as text
    visit         one request of a page: account, language, form, links, rendering; the registry of pages
    app           the routes, and errors as pages
    api           `/api/v1`, with its OpenAPI document
    mcp           the commands as tools of the Model Context Protocol
    pages/        one module for each subject

A page reads the snapshot and asks for the measurements of the rows that it shows. All changes go through `actions`.
"""
